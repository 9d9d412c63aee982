"""Bad input at the command line: one line on standard error that says how to mend it, exit code 2, nothing lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Command, error_line


def test_a_checkpoint_of_another_base_is_refused(
    ttabench: Command, common: str, trained: Path, tmp_path: Path
) -> None:
    from tests.tiny import tiny_llama

    lm, other = tiny_llama(seed=5), tmp_path / "other"
    lm.model.save_pretrained(other)
    lm.tokenizer.save_pretrained(other)
    ran = ttabench(f"eval --method mac {common} --checkpoint {trained} --model", other)
    assert "another base model" in error_line(ran)
    (trained / "adapter.safetensors").write_bytes(b"damaged")
    assert "cannot be read" in error_line(
        ttabench(f"eval --method mac {common} --checkpoint {trained}")
    )


BAD = [
    ("--method makc", "Did you mean 'mac'?"),
    ("--task streaminqa", "Did you mean 'streamingqa'?"),
    ("--set truncat=left", "Did you mean 'truncate'?"),
    ("--task-set document=3", "Did you mean 'documents'?"),
    ("--source no/such/file.csv", "no/such/file.csv"),
    ("--state no/such", "no/such"),
    ("--batch-size 0", "--batch-size"),
    ("--seeds 1,x", "--seeds takes list[int]"),
    ("--seed -1", "from 0"),
    ("--device cuda:77", "cuda:77"),
    ("--dtype float23", "Did you mean 'float32'?"),
    ("--ask-only", "--state DIR"),
    ("--boost 1e39", "--boost"),
    ("--device cpu:7", "cpu:7"),
    (f"--limit {10**30}", "--limit"),
    ("--model x/y:z", "x/y:z"),
    ("--model x/y--z --chat-template", "x/y--z"),
    ("--method rag --set retriever=x/y:z", "x/y:z"),
    ("--task-set documents=40", "truncate=left"),
]


@pytest.mark.parametrize(("words", "hint"), BAD)
def test_bad_input_is_one_line(
    ttabench: Command, common: str, tmp_path: Path, words: str, hint: str
) -> None:
    assert hint in error_line(ttabench(f"eval {common}", *words.split()))
    assert not list((tmp_path / "runs").glob("*")), "a refused run leaves no folder"


def test_bad_output_folders_and_records(ttabench: Command, common: str, tmp_path: Path) -> None:
    ran = ttabench(f"eval --method none {common} --out /proc/nowhere")
    assert "Cannot write" in error_line(ran)
    assert "--out" in ran.err
    (folder,) = ttabench(f"eval --method none {common} --quiet").out.split()
    record = Path(folder) / "run.json"
    record.write_text(record.read_text()[:-100])
    for arguments in (
        (f"eval --method none {common}",),
        ("compare", folder),
        ("list runs --out", tmp_path / "runs"),
    ):
        assert "run.json cannot be read" in error_line(ttabench(*arguments))
    shutil.rmtree(folder)
    assert "no runs" in error_line(ttabench(f"compare --out {tmp_path / 'runs'}"))
    assert "no runs" in error_line(ttabench(f"compare abc --out {tmp_path / 'runs'}"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("list method", "Did you mean 'methods'?"),
        ("list methods icll", "Did you mean 'icl'?"),
        ("adapt", "--context FILE"),
        ("ask Who? --state nowhere", "There is no state in nowhere"),
        ("ask --state nowhere", "--questions FILE"),
        ("profile --prefill 1k,many", "--prefill 'many'"),
        ("profile --methods icl,none --set chunk=3", "Unknown setting of these methods 'chunk'"),
        ("profile --methods icl --set snapkv.chunk=3", "Unknown method in --set 'snapkv'"),
        ("profile --task streaminqa", "Did you mean 'streamingqa'?"),
        ("sweep none.yaml", "Error: none.yaml cannot be read: No such file or directory."),
        ("compare no/where", "There is no file or folder no/where."),
        ("profile --memory-limit lots", "--memory-limit 'lots'"),
        ("profile --throughput --device cpu", "--memory-limit 4GiB"),
        ("train --method icl --source mini", "no parameters"),
        ("train --lr -1 --source mini", "lr must be a positive number, got -1.0"),
        ("evl", "No such command 'evl'. Did you mean 'eval'?"),
        ("eval --methd icl", "No such option: --methd (Possible options: --method"),
        ("eval mac", "(mac). Run `ttabench eval --help`."),
    ],
)
def test_other_commands_refuse_in_one_line(
    ttabench: Command,
    tiny_base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if words.startswith(("adapt", "profile", "train")):
        words = f"{words} --model {tiny_base}"
    assert hint in error_line(ttabench(words))


def test_what_no_hub_brings_is_reported(ttabench: Command, common: str) -> None:
    known = error_line(ttabench(f"eval {common} --model gpt2"))
    assert "save_pretrained, or add --random-weights" in known
    assert "--random-weights" not in error_line(ttabench(f"eval {common} --model nobody/nothing"))
    hub = ("--task", "squad_seq", "--source", "hub")
    assert "--source mini" in error_line(ttabench(f"eval {common}", *hub))
    assert "nobody/nothing" in error_line(
        ttabench(f"eval {common}", *hub, "--model", "nobody/nothing")
    )


@pytest.mark.parametrize(
    "words",
    [
        "report --save mine.html",
        "profile --plot mine.png",
        "export --save mine.parquet",
        "new method mine --out .",
    ],
)
def test_files_of_the_user_are_not_replaced(
    ttabench: Command, common: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ttabench(f"eval --method none {common} --out results/scratch").code == 0
    for suffix in ("html", "png", "parquet", "py"):
        Path(f"mine.{suffix}").write_text("mine, about ttabench")
    assert "mine." in error_line(ttabench(words))
    assert {file.read_text() for file in tmp_path.glob("mine.*")} == {"mine, about ttabench"}
