"""The suites of results/: which commands each is made of, as `ttabench eval` takes them.

    SUITES["unseen"]      [["--method", "none", "--task", "hellaswag", "--task-set", "shots=10"], ...]

Every suite runs on the miniature twins, with nano and the adapters that the package brings.
"""

from __future__ import annotations

CAPS = ("random", "average_random", "average_nearest")
FITS = 165
"""Most documents of a twin that stand in nano's window; beyond, full context keeps the newest tokens."""
LENGTHS = {"streamingqa": (4, 16, 64, 165, 1665), "squad_seq": (16, 64, 165)}
SWAPPED = 64
FEW = 16
"""Streams of at most so many documents ask more of each: enough for a standard error of a few points."""

STREAMADAPTER = ["streamadapter", "--checkpoint", "shipped:streamadapter-superglue"]
LORA = ["lora", "--checkpoint", "shipped:lora-superglue"]
TEMPLORA = ["templora", "--preset", "nano-demonstrations"]
"""Both checkpoints were trained on the SuperGLUE twin with `rules=mixed`: the rules of half of its episodes are fixed
(LoRA then knows them by heart), those of the other half are new and must be read."""
BY_RULE = [
    ["snapkv", "--preset", "streamadapter"],
    ["h2o", "--preset", "streamadapter"],
    ["window", "--set", "mode=postprefill", "--set", "recent=0.2"],
]
"""A fifth of the keys and values of what was read, by each rule."""
ADAPTING = ("streamadapter", "templora", "mac", "uniform", "rag")
"""Methods whose state is made from what they read: is what they gain memory of it, or practice with such texts?"""


def command(words: list[str], task: str, *options: str) -> list[str]:
    """A method on a task."""
    told = [word for option in options for word in ("--task-set", option)]
    return ["--method", *words, "--task", task, *told]


def swapped(commands: list[list[str]]) -> list[list[str]]:
    """The same, but methods that adapt answer under another context's state and under none, too."""
    return [[*words, "--swap-state"] if words[1] in ADAPTING else words for words in commands]


def online(task: str, documents: int) -> list[list[str]]:
    """Closed book, full context, a fifth of it, weights trained while reading, and MAC, flat and with a tree.

    Of up to `SWAPPED` documents what adapts answers under other documents' state, too.
    """
    options = [f"documents={documents}", *(["questions=4"] if documents <= FEW else [])]
    trees = [["mac", "--set", "hierarchy=16"]] if documents > FEW else []
    by_length = [TEMPLORA] if task == "streamingqa" or documents <= FEW else []
    reading = [["icl"], *BY_RULE, *by_length, STREAMADAPTER]
    if documents > FITS:
        reading = [["icl", "--set", "truncate=left"], ["window", "--set", "recent=1536"]]
    commands = [command(words, task, *options) for words in [["none"], *reading, ["mac"], *trees]]
    return swapped(commands) if documents <= SWAPPED else commands


def reductions(documents: int) -> list[list[str]]:
    """MAC with all of its bank and with three quarters of it, by each rule of the paper's Figure 7."""
    cap = 1250 if documents == 1665 else documents * 3 // 4
    capped = [["mac", "--set", f"bank_cap={cap}", "--set", f"bank_reduce={rule}"] for rule in CAPS]
    return [command(words, "streamingqa", f"documents={documents}") for words in (["mac"], *capped)]


RATIOS = (0.2, 0.4, 0.6, 0.8, 1.0)
SHOTS = (0, 1, 3, 10, 30)
UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")


def demonstrations(task: str, *options: str) -> list[list[str]]:
    """Nothing, everything, and a fifth of the keys and values by each rule."""
    return [command(words, task, *options) for words in (["none"], ["icl"], *BY_RULE)]


def adapters(task: str, *options: str) -> list[list[str]]:
    """What turns demonstrations into weights, and LoRA, which has learned before and reads them (`ratio=0`) or not."""
    changing = [command(words, task, *options) for words in (STREAMADAPTER, TEMPLORA, LORA)]
    return [*changing, command(LORA, task, *options, "ratio=0")]


def both(task: str, *options: str) -> list[list[str]]:
    """Everything that is compared on ten demonstrations of a task."""
    return [*demonstrations(task, "shots=10", *options), *adapters(task, "shots=10", *options)]


def ratios(task: str) -> list[list[str]]:
    """The share of ten demonstrations that is adapted to; the others stand in the window (StreamAdapter, Table 9)."""
    whole = [command([name], task, "shots=10") for name in ("none", "icl")]
    adapted = [
        command(words, task, "shots=10", f"ratio={ratio}")
        for words in (*BY_RULE[:2], STREAMADAPTER)
        for ratio in RATIOS
    ]
    return [*whole, *adapted]


def scaling(task: str) -> list[list[str]]:
    """By number of demonstrations (StreamAdapter, Table 8)."""
    read = [command(["icl"], task, f"shots={count}") for count in SHOTS]
    kept = [command(words, task, f"shots={count}") for count in SHOTS[1:] for words in (*BY_RULE, STREAMADAPTER)]
    return [*read, *kept]


BOOKS = [["none"], ["window", "--preset", "book"], ["templora", "--preset", "nano"], ["streamadapter"]]
"""What stands in for the pages that left the window; TempLoRA at the learning rate chosen for nano on validation."""

WHOLE = [["none"], ["icl"], ["rag"], *BY_RULE, TEMPLORA, ["uniform"], ["salient_spans"]]
"""What reads texts of every kind, and needs no training."""
FAMILIES = {
    "streamingqa": ["documents=16", "questions=4"], "squad_seq": ["documents=16", "questions=4"],
    "archivalqa": ["documents=16", "questions=4"], "superglue": ["shots=10", "rules=fresh"], "metaicl": ["steps=16"],
    "lamp": ["steps=16"], "msc": [], "dailydialog": ["steps=12"],
}  # fmt: skip
"""The nine families, but for books, which are read through a window."""
TRAINED = {"mac": "streamingqa", "streamadapter": "superglue", "lora": "superglue"}
"""Which adapter stands in on families that a method has none for."""
OWN = {("mac", "squad_seq")}
"""Beside these, a method has an adapter of its own on this family."""


def nine() -> list[list[str]]:
    """Every method on every family; what takes gradient steps five times over each piece comes last."""
    commands = []
    for task, options in FAMILIES.items():
        trained = [
            [name, "--checkpoint", f"shipped:{name}-{task if (name, task) in OWN else stand_in}"]
            for name, stand_in in TRAINED.items()
        ]
        commands += [command(words, task, *options) for words in (*WHOLE, *trained)]
    commands += [command(words, "pg19", "tokens=16k", "books=1") for words in BOOKS]
    return swapped(sorted(commands, key=lambda words: "nano-demonstrations" in words))


LASTING = [["none"], ["icl", "--set", "truncate=left"], ["rag"], ["uniform"], ["salient_spans"], ["mac"]]
"""Asked about the first 200 documents again and again while they read on; full context keeps the newest tokens."""
TOPS = (1, 3, 5)
RETRIEVAL = [
    ["icl"], ["mac"],
    *(["rag", "--set", f"top={top}"] for top in TOPS),
    *(["rag+mac", "--set", f"rag_top={top}"] for top in TOPS),
]  # fmt: skip
"""Texts that are found, and MAC beside them (MAC's Table 2)."""

READ_BY = {
    name: [name, *more]
    for name, *more in (
        ["none"], ["icl"], ["rag"], ["uniform"], ["salient_spans"], ["cpt"], TEMPLORA, LORA,
        ["mac", "--checkpoint", "shipped:mac-streamingqa"],
        ["generative_adapter", "--checkpoint", "shipped:generative_adapter-streamingqa"],
    )
}  # fmt: skip
"""What reads documents once (forgetting.py), and then meets other text."""
READ_TO = "results/scratch/forgetting"
"""Where their states lie."""


def forgetting() -> list[list[str]]:
    """Under each state: the questions about its documents, and dialogues and books that it has read nothing of."""
    tasks = {"streamingqa": ["documents=64"], "dailydialog": [], "pg19": ["tokens=4k", "books=12"]}
    return [
        [*command(words, task, *options), "--state", f"{READ_TO}/{name}", "--ask-only"]
        for task, options in tasks.items()
        for name, words in READ_BY.items()
    ]


SUITES: dict[str, list[list[str]]] = {
    "nine": nine(),
    **{f"{task}-{n}": online(task, n) for task, lengths in LENGTHS.items() for n in lengths},
    **{f"reductions-{n}": reductions(n) for n in (64, 1665)},
    "superglue-shots": scaling("superglue"),
    "metaicl": demonstrations("metaicl"),
    "superglue-fixed": both("superglue", "rules=fixed"),
    "superglue-fresh": swapped(both("superglue", "rules=fresh")),
    "unseen": [words for task in UNSEEN for words in both(task)],
    "adaptation-ratio": ratios("superglue"),
    "pg19": swapped([command(words, "pg19", "tokens=4k,16k,64k", "books=1") for words in BOOKS]),
    "swap": [[*command(["streamadapter"], "pg19", "tokens=32k", "books=2"), "--swap-state"]],
    "retention": [command(words, "streamingqa", "kind=retention", "documents=1600") for words in LASTING],
    "forgetting": forgetting(),
    "retrieval": [command(words, "streamingqa", "documents=165") for words in RETRIEVAL],
}
PROFILES = {"profile": "none,icl,window,snapkv,h2o,mac", "profile-weights": "none,streamadapter,templora,lora"}
"""Tables of what methods cost: those with a cache or a memory, and those that change weights."""
OPTION_VARIED = {"superglue-shots": "shots", "adaptation-ratio": "ratio"}
"""Suites with a grid by values of a task option."""
BY_PART = ("superglue-fixed", "superglue-fresh", "unseen")
"""Suites with a grid by sub-task."""
BY_TASK = ("nine",)
"""Suites with a grid by task."""
WITHOUT_PAIRS = ("adaptation-ratio", "nine", "forgetting")
"""Too many runs to compare every pair, or a table that has them."""
UNDER_STATES = ("forgetting",)
"""Suites of states that were read before, of one draw."""
TRANSFER = ("superglue-fixed", "superglue-fresh", "unseen")
"""Suites of one table: what was learned by heart, and what is read."""
BY_LENGTH = ("pg19",)
"""Suites with a grid by the length up to which a text was read."""
BY_STATE = {
    "swap": "What StreamAdapter's state holds of a book: the same strides under another book's state, and none."
}
"""Suites of one method with a grid by whose state answered, and what that shows."""
