"""User profiles of the synthetic world, in the schema of LaMP: each user has different categories.

    question: "Which category ...? ... article: a heron was seen near the road"
    profile:  16 articles with categories

Only the profile reveals which of the 15 categories a topic (birds, tools ...) has; another user has
others. A user reads about two topics, so the first entry answers every second query. With four
topics, one entry revealed too little.
"""

from __future__ import annotations

from ttabench.mini.demonstrations import category_groups, scene
from ttabench.mini.world import Wording, rng

Row = dict[str, object]
NEWS = (
    "politics",
    "entertainment",
    "sports",
    "business",
    "crime",
    "travel",
    "religion",
    "women",
    "parents",
    "food",
    "science",
    "culture",
    "education",
    "style",
    "religion & culture",
)
INSTRUCTION = "Which category does this article relate to? Just answer with the category name."


def lamp(
    split: str,
    seed: int,
    users: int = 32,
    entries: int = 16,
    topics: int = 2,
    wording: Wording = "trained",
) -> tuple[list[Row], Row]:
    """Generate (questions, outputs) of the first release's LaMP_2: news categories, profile {title,
    text, category, id}.
    """
    questions, golds = list[Row](), list[Row]()
    for number in range(users):
        source = rng("lamp", split, seed, number)
        read = list(source.choice(category_groups(split, topics, wording)))
        categories = dict(zip(read, source.sample(NEWS[:14], topics), strict=True))
        profile = []
        for i in range(entries):
            topic = read[i] if i < topics else source.choice(read)
            profile.append(
                {
                    "id": f"{number}-{i}",
                    "title": topic,
                    "text": scene(source, topic),
                    "category": categories[topic],
                }
            )
        source.shuffle(profile)
        topic = source.choice(read)
        key = f"mini-{split}-{seed}-{number}"
        given = {"input": f"{INSTRUCTION} article: {scene(source, topic)}", "options": list(NEWS)}
        questions.append({"id": key, **given, "profile": profile})
        golds.append({"id": key, "output": categories[topic]})
    return questions, {"task": "LaMP_2", "golds": golds}
