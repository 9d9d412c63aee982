"""Command lines made to hurt: what is typed, and the files it names, each case by the seed in its name."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.attack import mutate
from tests.attack.mutate import TYPED
from ttabench.core.digests import digest
from ttabench.methods.state_header import header_digest as _digest
from ttabench.readers.cards import cards_folder

Words = list[object]


@dataclass(frozen=True, kw_only=True)
class Good:
    """What is there and whole: copied, then damaged."""

    base: Path
    """A model's folder."""
    checkpoint: Path
    """Of lora, on that model."""
    state: Path
    """Of icl, and one of templora beside it, on that model."""
    runs: Path
    """A folder of two runs."""
    partial: Path
    """A folder with a run that was killed."""
    gguf: Path | None
    """A GGUF file; None where none can be written."""


def small(good: Good, out: Path, method: str = "none") -> Words:
    """An evaluation that takes no time."""
    return ["eval", "--method", method, "--model", good.base, "--source", "mini", "--out", out, "--json",
            "--task-set", "documents=1", "--task-set", "max_new_tokens=1", "--limit", 2]  # fmt: skip


def options(good: Good, out: Path, random: Random) -> Words:
    """What is typed."""
    text = random.choice(TYPED)
    name = text if text.strip(" ./~*") and not text.startswith("/") and "\0" not in text else "odd"
    name = name.replace("../", "..")
    (out / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    commands: dict[str, tuple[Words, list[str]]] = {
        "eval": (small(good, out / "o"),
                 ["--method", "--task", "--source", "--split", "--limit", "--preset", "--set", "--task-set", "--seed",
                  "--seeds", "--checkpoint", "--state", "--device", "--dtype", "--batch-size", "--bos", "--threads",
                  "--memory-limit", "--base-checkpoint", "--model", "--nonsense", "--ask-only", "--swap-state"]),
        "train": (["train", "--method", "lora", "--set", "rank=1", "--model", good.base, "--source", "mini",
                   "--steps", 1, "--documents", 1, "--questions", 1, "--out", out / "o", "--json"],
                  ["--lr", "--warmup", "--schedule", "--beta2", "--clip", "--decay", "--accumulate", "--save-every",
                   "--validate-every", "--stored", "--rounds", "--batch-documents", "--documents", "--questions",
                   "--preset", "--set", "--task", "--split", "--checkpoint", "--memory-limit"]),
        "adapt": (["adapt", "--model", good.base, "--context", out / "notes.txt", "--out", out / "o", "--json"],
                  ["--context", "--pieces", "--method", "--set", "--state", "--task", "--preset", "--bos", "--dtype"]),
        "compare": (["compare", good.runs], ["--metric", "--format", "--plot", "--out", "--json"]),
        "list": (["list"], ["methods", "tasks", "models", "runs", "--out", "--json"]),
        "profile": (["profile", "--analytic", "--methods", "icl", "--prefill", "16", "--model", "llama-3-8b"],
                    ["--methods", "--prefill", "--generate", "--dtype", "--piece-tokens", "--model", "--preset",
                     "--set", "--memory-limit", "--repeat", "--format"]),
        "new": (["new", "method"], ["--out"]),
    }  # fmt: skip
    words, flags = commands[random.choice(list(commands))]
    flag = random.choice(flags)
    if flag in ("--out", "--plot"):
        text = str(out / name[:200].replace("/", "_"))
    elif flag in ("--set", "--task-set") and random.random() < 0.7:
        keys = [
            "documents",
            "questions",
            "max_new_tokens",
            "truncate",
            "shots",
            "prompt",
            "examples",
            "rank",
            "nope",
            "",
        ]
        text = f"{random.choice(keys)}={text if text not in ('9' * 30,) else '-5'}"
    if words[0] in ("list", "new") and not flag.startswith("-"):
        return [*words, flag, text]
    if words[0] == "new":
        return [*words, text, flag, str(out / "made")]
    return [*words, flag, text] if random.random() < 0.95 else [*words, flag]


def cards(good: Good, out: Path, random: Random) -> Words:
    """Task cards."""
    path = random.choice(sorted(cards_folder().glob("*.yaml")))
    text = path.read_text(encoding="utf-8")
    card = out / f"{path.stem}.yaml"
    if random.random() < 0.6:
        made = mutate.value_of(yaml.safe_load(text), random)
        card.write_text(yaml.safe_dump(made, allow_unicode=random.random() < 0.5), encoding="utf-8", errors="replace")
    else:
        card.write_bytes(mutate.bytes_of(text.encode(), random))
    return ["eval", "--method", "none", "--model", good.base, "--task", card, "--source", "mini", "--limit", 1,
            "--json", "--out", out / "o"]  # fmt: skip


ROWS: dict[str, list[dict[str, Any]]] = {
    "streamingqa": [{"text": f"Ada {n} lives in Ansel.", "question": f"Where does Ada {n} live?", "answers": "Ansel"}
                    for n in range(4)],
    "squad_seq": [{"id": f"q{n}", "title": "T", "context": f"Text {n}.", "question": f"Which {n}?",
                   "answers": {"text": [f"{n}", "text"], "answer_start": [0, 0]}} for n in range(4)],
    "piqa": [{"goal": f"open {n}", "sol1": "pull", "sol2": "push it", "label": n % 2} for n in range(4)],
    "winogrande": [{"sentence": f"{n} said _ left.", "option1": "Ann", "option2": "Bea", "answer": "1"}
                   for n in range(4)],
}  # fmt: skip
FORMATS = ("csv", "tsv", "json", "jsonl", "jsonl.gz", "csv.gz", "parquet", "arrow", "txt")


def sources(good: Good, out: Path, random: Random) -> Words:
    """Data of every format."""
    task, form = random.choice(list(ROWS)), random.choice(FORMATS)
    rows: Any = copy.deepcopy(ROWS[task])
    if random.random() < 0.5:
        rows = mutate.value_of(rows, random)
    path = out / f"{random.choice(['data', 'test', 'é漢', '-x'])}.{form}"
    path.write_bytes(_written(rows, form, random))
    if random.random() < 0.5 and form.endswith(("gz", "csv", "json", "jsonl", "parquet", "txt")):
        path.write_bytes(mutate.bytes_of(path.read_bytes(), random))
    if random.random() < 0.05:
        mutate.place(path, random)
    where = path if random.random() < 0.8 else out
    return ["eval", "--method", random.choice(["none", "icl"]), "--model", good.base, "--task", "pg19" if form == "txt"
            else task, "--source", where, "--limit", 2, "--json", "--out", out.parent / "o",
            *(["--task-set", "shots=1"] if task in ("piqa", "winogrande") and form != "txt" else [])]  # fmt: skip


def _written(rows: Any, form: str, random: Random) -> bytes:
    if form == "txt":
        return ("Ada Voss lives in Port Ansel. " * 40).encode()
    if form == "json":
        return json.dumps(rows if random.random() < 0.5 else {"data": rows}).encode("utf-8", "replace")
    if form in ("parquet", "arrow"):
        return _table(rows, form)
    listed = rows if isinstance(rows, list) else [rows]
    if form.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in listed)
    else:
        filled = [row for row in listed if isinstance(row, dict)] or [{"text": ""}]
        stream = io.StringIO()
        keys = list(dict.fromkeys(str(key) for row in filled for key in row))
        writer = csv.DictWriter(stream, keys, extrasaction="ignore", delimiter="\t" if form[0] == "t" else ",")
        writer.writeheader()
        writer.writerows({str(key): value for key, value in row.items()} for row in filled)
        text = stream.getvalue()
    data = text.encode("utf-8", "replace")
    return gzip.compress(data, mtime=0) if form.endswith("gz") else data


def _table(rows: Any, form: str) -> bytes:
    stream = io.BytesIO()
    try:
        table = pa.Table.from_pylist([row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else [])
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        table = pa.Table.from_pylist(ROWS["streamingqa"])
    if form == "parquet":
        pq.write_table(table, stream)
    else:
        with pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)
    return stream.getvalue()


def _damaged(folder: Path, out: Path, random: Random, names: str = "*") -> Path:
    """A copy of a folder of which one file is damaged."""
    made = out / "copy"
    shutil.copytree(folder, made)
    mutate.file(
        random.choice(sorted(file for file in made.rglob(names) if file.is_file() and file.name != ".lock")), random
    )
    return made


def checkpoints(good: Good, out: Path, random: Random) -> Words:
    """Folders that `train` wrote, used, stood on, and trained on."""
    made = _damaged(good.checkpoint, out, random)
    how = random.random()
    if how < 0.5:
        return [*small(good, out / "o", "lora"), "--checkpoint", made]
    if how < 0.7:
        return [*small(good, out / "o"), "--base-checkpoint", made]
    return ["train", "--method", "lora", "--set", "rank=1", "--model", good.base, "--source", "mini", "--steps", 3,
            "--documents", 1, "--questions", 1, "--save-every", 1, "--out", made, "--json"]  # fmt: skip


def states(good: Good, out: Path, random: Random) -> Words:
    """Folders that `adapt` wrote; of half of them the digests are made to fit again."""
    method = random.choice(["icl", "templora"])
    made = _damaged(good.state / method, out, random, "state*")
    header = made / "state.json"
    if random.random() < 0.5:
        try:
            content = json.loads(header.read_text())
            content["files"]["state.safetensors"] = digest(made / "state.safetensors")
            header.write_text(json.dumps({**content, "digest": _digest(content)}))
        except Exception:  # there is no header left to make fit
            assert True
    extra = ["--set", "rank=2", "--set", "prefix=0"] if method == "templora" else []
    if random.random() < 0.3:
        (out / "notes.txt").write_text("More.")
        force = ["--force"] if random.random() < 0.5 else []
        return ["adapt", "--method", method, *extra, "--model", good.base, "--context", out / "notes.txt", "--json",
                "--out", random.choice([made, out / "new"]), "--state", made, *force]  # fmt: skip
    return [*small(good, out / "o", method), *extra, "--state", made, "--ask-only"]


def records(good: Good, out: Path, random: Random) -> Words:
    """Runs that are stored, or that were killed."""
    if random.random() < 0.3:
        made = _damaged(good.partial, out, random, "partial.jsonl")
        return [*small(good, made), "--task-set", "questions=3", "--batch-size", 1]
    made = _damaged(good.runs, out, random)
    how = random.random()
    if how < 0.5:
        return ["compare", made, "--format", random.choice(["table", "markdown", "csv", "json"])]
    return ["list", "runs", "--out", made] if how < 0.7 else small(good, made)


def models(good: Good, out: Path, random: Random) -> Words:
    """Folders of models."""
    made = _damaged(good.base, out, random)
    words = small(good, out / "o")
    words[words.index("--model") + 1] = made
    return words


def ggufs(good: Good, out: Path, random: Random) -> Words:
    """GGUF files."""
    assert good.gguf is not None
    data, file = bytearray(good.gguf.read_bytes()), out / "model.gguf"
    if random.random() < 0.2:
        data = bytearray(mutate.bytes_of(bytes(data), random))
    else:  # in the header, where it says what follows
        for _ in range(random.choice((1, 2, 8))):
            at = random.randrange(24 if random.random() < 0.3 else min(len(data), 12_000))
            data[at] = random.choice([0, 255, 128, data[at] ^ 1, random.randrange(256)])
    file.write_bytes(bytes(data))
    if random.random() < 0.03:
        mutate.place(file, random)
    words = small(good, out / "o")
    words[words.index("--model") + 1] = file
    return words


KINDS: dict[str, tuple[Callable[[Good, Path, Random], Words], int]] = {
    "options": (options, 330), "cards": (cards, 160), "sources": (sources, 400), "checkpoints": (checkpoints, 160),
    "states": (states, 160), "records": (records, 160), "models": (models, 160), "gguf": (ggufs, 70),
}  # fmt: skip
"""Makers of cases, and how many there are of each."""
