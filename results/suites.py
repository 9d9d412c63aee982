"""The suites of results/: which commands each is made of, as `ttabench eval` takes them.

    SUITES["unseen"]      [["--method", "none", "--task", "hellaswag", "--task-set", "shots=10"], ...]

Every suite runs on the miniature twins, with nano and the adapters that the package brings.
"""

from __future__ import annotations

CAPS = ("random", "average_random", "average_nearest")
FITS = 32
"""Most documents of a twin that stand in nano's window; beyond, full context keeps the newest tokens."""
TOKENS = 3_840
"""What nano's window holds beside a prompt and an answer."""
LENGTHS = {"streamingqa": (4, 16, 32, 64, 256, 1665), "squad_seq": (16, 64)}


def stream(task: str, documents: int) -> list[str]:
    """Task options; short streams ask more, enough for a standard error of a few points."""
    options = ["--task", task, "--task-set", f"documents={documents}"]
    return [*options, "--task-set", "questions=4"] if documents <= FITS else options


def online(task: str, documents: int) -> list[list[str]]:
    """Closed book, full context, and MAC with one aggregation and, where there are several groups, with a tree."""
    reading = ["icl"] if documents <= FITS else ["icl", "--set", "truncate=left"]
    trees = [["mac", "--set", "hierarchy=16"]] if documents > 16 else []
    return [["--method", *chosen, *stream(task, documents)] for chosen in (["none"], reading, ["mac"], *trees)]


def reductions(documents: int) -> list[list[str]]:
    """MAC with all of its bank and with three quarters of it, by each rule of the paper's Figure 7."""
    cap = 1250 if documents == 1665 else documents * 3 // 4
    capped = [["mac", "--set", f"bank_cap={cap}", "--set", f"bank_reduce={rule}"] for rule in CAPS]
    return [["--method", *chosen, *stream("streamingqa", documents)] for chosen in (["mac"], *capped)]


RATIOS = tuple(round(0.1 * tenths, 1) for tenths in range(1, 11))
SHOTS = (0, 1, 3, 5, 10, 15, 20, 25, 30)
OTHER_WORDS = ("superglue", "arc_easy", "arc_challenge", "piqa")
"""Tasks for which StreamAdapter's Table 10 has other words."""
UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")
FIFTH = {
    "superglue": 52, "hellaswag": 44, "winogrande": 30, "openbookqa": 26, "arc_easy": 37, "arc_challenge": 38,
    "piqa": 38, "metaicl": 38,
}  # fmt: skip
"""A fifth of the tokens of ten demonstrations of a twin (metaicl: of sixteen), the mean over its sub-tasks; a test
holds them to the twins."""


def evicting(recent: int) -> list[list[str]]:
    """A fifth of the keys and values by each rule (`recent` is that fifth in tokens)."""
    return [
        ["snapkv", "--preset", "streamadapter"],
        ["h2o", "--preset", "streamadapter"],
        ["window", "--set", f"recent={recent}"],
    ]


STREAMADAPTER = ["streamadapter", "--checkpoint", "shipped:streamadapter-superglue"]
LORA = ["lora", "--checkpoint", "shipped:lora-superglue"]
TEMPLORA = ["templora", "--preset", "nano-demonstrations"]
"""Both checkpoints were trained on the SuperGLUE twin with `rules=mixed`: LoRA on 76,800 answers, then it knows the
fixed rules by heart, StreamAdapter on 292,800."""
IN_WINDOW = ["--task-set", "ratio=0"]
"""All demonstrations stand in the window, and the weights are those of the adapter."""


def adapters(task: str, options: list[str]) -> list[list[str]]:
    """What turns demonstrations into weights, and LoRA, which has learned before and reads them or does not."""
    chosen = [STREAMADAPTER, TEMPLORA, LORA, [*LORA, *IN_WINDOW]]
    return [["--method", *words, "--task", task, *options] for words in chosen]


def demonstrations(task: str, options: list[str], recent: int) -> list[list[str]]:
    """Nothing, everything, and a fifth of the keys and values by each rule."""
    chosen = [["none"], ["icl"], *evicting(recent)]
    return [["--method", *words, "--task", task, *options] for words in chosen]


def ratios(task: str) -> list[list[str]]:
    """The share of ten demonstrations that is adapted to; the others stand in the window (StreamAdapter, Table 9)."""
    whole = [["--method", name, "--task", task, *shots(10)] for name in ("none", "icl")]
    adapted = [
        ["--method", *words, "--task", task, *shots(10), "--task-set", f"ratio={ratio}"]
        for words in (*evicting(FIFTH[task])[:2], STREAMADAPTER)
        for ratio in RATIOS
    ]
    return [*whole, *adapted]


def scaling(task: str) -> list[list[str]]:
    """Full context by number of demonstrations (StreamAdapter, Table 8), and the evicting methods at two of them."""
    whole = [["--method", "icl", "--task", task, *shots(k)] for k in SHOTS]
    kept = [
        ["--method", *words, "--task", task, *shots(k)] for k in (10, 20) for words in evicting(FIFTH[task] * k // 10)
    ]
    mapped = [["--method", *STREAMADAPTER, "--task", task, *shots(k)] for k in SHOTS[1:]]
    return [*whole, *kept, *mapped]


def shots(count: int) -> list[str]:
    """Demonstrations in front of the queries."""
    return ["--task-set", f"shots={count}"]


def both(task: str, options: list[str]) -> list[list[str]]:
    """Everything that is compared on ten demonstrations of a task."""
    return [*demonstrations(task, options, FIFTH[task]), *adapters(task, options)]


ADAPTING = ("streamadapter", "templora", "mac")
"""Methods whose weights change with what they read: is what they gain memory of it, or practice with such texts?"""


def swapped(commands: list[list[str]]) -> list[list[str]]:
    """The same, but methods that adapt answer under another context's state and under none, too."""
    return [[*words, "--swap-state"] if words[1] in ADAPTING else words for words in commands]


TWO_BOOKS = ["--task", "pg19", "--task-set", "tokens=32k", "--task-set", "books=2"]
PAPER_RATE = ["templora", "--preset", "streamadapter-book"]
"""TempLoRA at the papers' learning rate; the preset `nano` has the rate chosen for nano on the validation split."""
BOOKS = [["none"], ["window", "--preset", "book"], ["templora", "--preset", "nano"], ["streamadapter"]]


def books(tokens: str, *options: str) -> list[list[str]]:
    """What stands in for the pages that left the window; the papers' rate, a second slow run, up to 64k tokens."""
    slow = "16k,32k,64k"
    chosen = [(words, tokens) for words in BOOKS] + [(PAPER_RATE, slow)]
    return [
        ["--method", *words, "--task", "pg19", "--task-set", f"tokens={lengths}", *options] for words, lengths in chosen
    ]


PUBLISHED = "results/scratch/books"
"""Where the suite `books` looks for PG-19's folders of books, which are not committed."""
SHELVES = ("test", "validation")


VARIANTS = ("", *(f"queries={n}" for n in (4, 32)), *(f"chunk={n}" for n in (32, 256)))
"""One setting of StreamAdapter changed, and none (16 queries, chunks of 64): the paper's Tables 4 and 5 in small."""


def variant(setting: str) -> str:
    """Folder of the checkpoint of a variant, which is trained for its suite and not kept."""
    return f"results/scratch/variants/{setting.replace('=', '-') or 'nano'}"


def training(setting: str) -> list[str]:
    """The training of a variant: the shipped adapter's data, a twentieth of its steps, ten demonstrations."""
    recipe = "--documents 10 --rounds 1 --questions 8 --batch-documents 160 --steps 120 --lr 6e-4"
    words = ["--method", "streamadapter", "--task", "superglue", "--task-set", "rules=mixed", *recipe.split()]
    changed = ["--set", setting] if setting else []
    return [*words, *changed, "--out", variant(setting), "--save-every", "0", "--force"]


def variants(task: str, options: list[str]) -> list[list[str]]:
    """Every variant on a task."""
    return [["--method", "streamadapter", "--checkpoint", variant(each), "--task", task, *options] for each in VARIANTS]


BY_RULE = [
    ["snapkv", "--preset", "streamadapter"],
    ["h2o", "--preset", "streamadapter"],
    ["window", "--set", "mode=postprefill", "--set", "recent=0.2"],
]
"""A fifth of the keys and values of what was read, by each rule."""


def command(words: list[str], task: str, *options: str) -> list[str]:
    """A method on a task."""
    told = [word for option in options for word in ("--task-set", option)]
    return ["--method", *words, "--task", task, *told]


WHOLE = [["none"], ["icl"], *BY_RULE, TEMPLORA]
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
    """Every method on every family."""
    commands = []
    for task, options in FAMILIES.items():
        trained = [
            [name, "--checkpoint", f"shipped:{name}-{task if (name, task) in OWN else stand_in}"]
            for name, stand_in in TRAINED.items()
        ]
        commands += [command(words, task, *options) for words in (*WHOLE, *trained)]
    return swapped([*commands, *(command(words, "pg19", "tokens=16k", "books=1") for words in BOOKS)])


SUITES: dict[str, list[list[str]]] = {
    "nine": nine(),
    **{f"{task}-{n}": online(task, n) for task, lengths in LENGTHS.items() for n in lengths},
    **{f"reductions-{n}": reductions(n) for n in LENGTHS["streamingqa"][1:]},
    "superglue-shots": scaling("superglue"),
    "superglue-30": demonstrations("superglue", shots(30), 160),
    "metaicl": demonstrations("metaicl", [], FIFTH["metaicl"]),
    "superglue-fixed": both("superglue", [*shots(10), "--task-set", "rules=fixed"]),
    "superglue-fresh": swapped(both("superglue", [*shots(10), "--task-set", "rules=fresh"])),
    "unseen": [words for task in UNSEEN for words in both(task, shots(10))],
    "other-words": [
        words for task in OTHER_WORDS for words in both(task, [*shots(10), "--task-set", "template=other"])
    ],
    "adaptation-ratio": [*ratios("superglue"), *ratios("openbookqa")],
    "variants": variants("superglue", shots(10)),
    "books": swapped(
        [words for split in SHELVES for words in books("16k,32k,64k", "--source", PUBLISHED, "--split", split)]
    ),
    "pg19": swapped(books("16k,32k,64k,128k,256k", "--task-set", "books=1")),
    "swap": swapped([["--method", "streamadapter", *TWO_BOOKS]]),
    "retention": [
        ["--method", "mac", "--task", "streamingqa", "--task-set", "kind=retention", "--task-set", "documents=1600"]
    ],
}
PROFILES = {"profile": "none,icl,window,snapkv,h2o,mac", "profile-weights": "none,streamadapter,templora,lora"}
"""Tables of what methods cost: those with a cache or a memory, and those that change weights."""
OPTION_VARIED = {"superglue-shots": "shots", "adaptation-ratio": "ratio"}
"""Suites with a grid by values of a task option."""
BY_PART = ("variants", "superglue-30", "superglue-fixed", "superglue-fresh", "unseen", "other-words")
"""Suites with a grid by sub-task."""
BY_TASK = ("nine",)
"""Suites with a grid by task."""
WITHOUT_PAIRS = ("adaptation-ratio", "nine")
"""Too many runs to compare every pair."""
TRANSFER = ("superglue-fixed", "superglue-fresh", "unseen")
"""Suites of one table: what was learned by heart, and what is read."""
BY_LENGTH = ("pg19", "books")
"""Suites with a grid by the length up to which a text was read."""
BY_STATE = {
    "swap": "What StreamAdapter's state holds of a book: the same strides under another book's state, and none."
}
"""Suites of one method with a grid by whose state answered, and what that shows."""
