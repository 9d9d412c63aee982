"""Options that make one task of each dataset reader as short as possible."""

SMALL_TASKS: dict[str, list[str]] = {
    "streamingqa": ["documents=2"],
    "superglue": ["shots=2"],
    "hellaswag": ["shots=2"],
    "metaicl": ["steps=2"],
    "lamp": ["users=1", "entries=2", "steps=2"],
    "msc": ["steps=1"],
    "dailydialog": ["steps=2"],
    "pg19": ["tokens=1k", "window=256", "stride=128", "books=1"],
    "recall": ["tokens=600", "books=1"],
    "shared_context": ["contexts=1", "people=2"],
    "ruler": ["length=400", "tasks=niah_single_1,qa_1"],
}
