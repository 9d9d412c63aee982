"""A run's id changes with every choice that changes figures, and with no new setting that is left at its default."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ttabench.core.identity import changed
from ttabench.methods import registry
from ttabench.methods.settings import defaults
from ttabench.methods.spec import MethodSpec
from ttabench.mini import qa
from ttabench.readers import READERS, cards, qa_stream
from ttabench.readers.protocol_options import defaults as task_defaults
from ttabench.run import resolve
from ttabench.run.config import RunConfig
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest
from ttabench.run.resolve import shipped_checkpoint

SMALL = ("documents=2", "questions=2")
CARD = """
name: mine
reader: qa_stream
columns: {question: [question], answers: [answers], text: [text]}
splits: {test: {files: [rows]}}
prompt: {templates: {plain: "{question}"}}
protocol: {prompt: plain, documents: 2}
metrics: [em]
main_metric: em
"""


def request(**changes: Any) -> RunRequest:
    return RunRequest(**{"method": "icl", "task": "streamingqa", "task_options": SMALL, **changes})


def run_id(seed: int = 0, **changes: Any) -> str:
    return make_plan(request(**changes), seed).config.identity()


def wider(spec: MethodSpec) -> MethodSpec:
    """The method with one more setting."""
    made = make_dataclass(
        "Wider", [("sharpness", float, field(default=1.0))], bases=(spec.Settings,), frozen=True, kw_only=True
    )
    return replace(spec, Settings=made, presets={name: made(**asdict(each)) for name, each in spec.presets.items()})


@pytest.mark.parametrize(
    "chosen",
    [
        {"method": "icl"},
        {"method": "icl", "settings": ("truncate=left",)},
        {"method": "templora", "preset": "nano"},
        {"method": "mac"},
        {"method": "mac", "checkpoint": "none", "settings": ("hierarchy=16",)},
    ],
    ids=str,
)
def test_a_new_setting_of_a_method_leaves_ids(monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]) -> None:
    before, found = run_id(**chosen), wider(registry.find(chosen["method"]))
    monkeypatch.setattr(resolve.registry, "find", lambda _: found)
    assert run_id(**chosen) == before
    typed = chosen.get("settings", ())
    assert run_id(**{**chosen, "settings": (*typed, "sharpness=1.0")}) == before
    assert run_id(**{**chosen, "settings": (*typed, "sharpness=2")}) != before


def test_ids_of_groups_stay() -> None:
    """As committed runs have them, from before groups could be told by documents."""
    groups = ("kind=grouped", "group_tokens=128")
    assert run_id(1, task_options=groups) == "4b306f8797fb"
    assert run_id(1, task_options=(*groups, "group_documents=4")) != "4b306f8797fb"


def test_a_new_option_of_a_task_leaves_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_id()

    class Wider(qa_stream.Settings):
        pauses: int = 0

    monkeypatch.setattr(qa_stream, "Settings", Wider)
    plan = make_plan(request(), 0)
    assert plan.config.task_options["pauses"] == 0, "the record keeps every option"
    assert plan.config.identity() == before
    assert run_id(task_options=(*SMALL, "pauses=1")) != before


def test_a_new_argument_of_a_twin_leaves_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = (cards.load_card("streamingqa").twin or pytest.fail("it has a twin")).generator.partition(":")
    assert module == qa.__name__
    original: Callable[..., Any] = getattr(qa, name)
    before = run_id()

    def longer(*place: Any, echo: int = 0, **more: Any) -> Any:
        return original(*place, **more)

    known = inspect.signature(original)
    parameters = [*known.parameters.values(), inspect.Parameter("echo", inspect.Parameter.KEYWORD_ONLY, default=0)]
    longer.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    longer.__annotations__ = {**original.__annotations__, "echo": int}
    monkeypatch.setattr(qa, name, longer)
    assert run_id() == before
    assert run_id(task_options=(*SMALL, "echo=0")) == before
    assert run_id(task_options=(*SMALL, "echo=1")) != before


def test_a_new_option_of_eval_leaves_ids() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wider(RunConfig):
        temperature: float = 0.0

    said = {"method": "icl", "task": "t", "limit": 3}
    assert Wider(**said).identity() == RunConfig(**said).identity()
    assert Wider(**said, temperature=0.5).identity() != RunConfig(**said).identity()


def test_a_default_that_is_typed_is_the_default() -> None:
    assert run_id(settings=("truncate=error",)) == run_id()
    options = make_plan(request(), 0).config.task_options
    typed = tuple(f"{key}={value}" for key, value in options.items() if value is not None)
    assert run_id(task_options=typed) == run_id()


def test_a_preset_is_its_settings() -> None:
    spec = registry.find("snapkv")
    (preset,) = {"streamadapter"} & spec.presets.keys()
    changes = changed(asdict(spec.presets[preset]), defaults(spec))
    assert changes
    typed = tuple(f"{key}={value}" for key, value in changes.items())
    assert run_id(method="snapkv", preset=preset) == run_id(method="snapkv", settings=typed) != run_id(method="snapkv")


def test_every_choice_that_changes_figures_changes_the_id() -> None:
    """Each of them differs from all the others, too."""
    mac = {"method": "mac", "checkpoint": "none"}
    chosen: list[dict[str, Any]] = [
        {},
        {"method": "none"},
        {"task": "squad_seq"},
        {"model": "gpt2", "random_weights": True, "source": "mini"},
        {"model": "distilgpt2", "random_weights": True, "source": "mini"},
        {"split": "validation"},
        {"seed": 1},
        {"limit": 1},
        {"settings": ("truncate=left",)},
        {"settings": ("truncate=right",)},
        {"settings": ("max_tokens=64",)},
        {"task_options": ("documents=3", "questions=2")},
        {"task_options": ("documents=2", "questions=1")},
        {"task_options": (*SMALL, "max_new_tokens=3")},
        {"dtype": "bfloat16"},
        {"batch_size": 1},
        {"state_of": "none"},
        {"state_of": "other"},
        {"bos": "no"},
        {"base_checkpoint": "shipped:lora-superglue"},
        {"method": "mac"},
        mac,
        {"method": "mac", "checkpoint": "shipped:mac-squad_seq"},
        {**mac, "settings": ("hierarchy=16",)},
    ]
    ids = [run_id(**each) for each in chosen]
    assert len(set(ids)) == len(ids), [each for each, found in zip(chosen, ids, strict=True) if ids.count(found) > 1]


@pytest.mark.parametrize(
    "change",
    [{"source": "hub"}, {"ask_only": True}, {"chat_template": True}, {"verb": "train"}, {"model": "gpt2"},
     *({"inputs": {name: "12"}} for name in ("rows", "model", "method", "checkpoint", "base_checkpoint", "state",
       "card", "reader"))],
    ids=str,
)  # fmt: skip
def test_what_a_plan_here_cannot_have_changes_the_id_too(change: dict[str, Any]) -> None:
    base = {"method": "icl", "task": "t"}
    assert RunConfig(**{**base, **change}).identity() != RunConfig(**base).identity()


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, None), (None, "none"), ([1], 1)])
def test_values_that_python_takes_for_equal_are_told_apart(one: Any, other: Any) -> None:
    """A budget of 1.0 is all of a text, one of 1 is a token of it."""
    configs = [RunConfig(method="m", settings={"budget": each}) for each in (one, other)]
    assert configs[0].identity() != configs[1].identity()
    assert changed({"budget": one}, {"budget": other}) == {"budget": one}
    assert changed({"budget": one}, {"budget": one}) == {}


def test_the_protocol_of_a_changed_card_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "answers": ["Ada"], "text": "Ada."}\n' * 2)
    card = tmp_path / "mine.yaml"
    ids = []
    for text in (CARD, CARD.replace("documents: 2", "documents: 1")):
        card.write_text(text)
        plan = make_plan(request(task=str(card), source=str(tmp_path / "rows.jsonl"), task_options=()), 0)
        ids.append(replace(plan.config, inputs={}).identity())
    assert ids[0] != ids[1]


def test_a_folder_that_a_setting_names_is_what_it_holds(tmp_path: Path) -> None:
    chosen = {"method": "mac", "checkpoint": "none", "settings": (f"amortiser={tmp_path / 't5'}",)}
    before = run_id(**chosen)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "model.safetensors").write_text("1")
    there = run_id(**chosen)
    assert run_id(**chosen) == there != before
    (tmp_path / "t5" / "model.safetensors").write_text("2")
    assert run_id(**chosen) not in (before, there)


def test_so_is_one_below_the_home_folder_and_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "encoder").mkdir()
    cached = tmp_path / "hub" / "models--somebody--encoder"
    (cached / "refs").mkdir(parents=True)

    def write(number: int) -> None:
        (tmp_path / "encoder" / "model.safetensors").write_text(str(number))
        folder = cached / "snapshots" / (commit := str(number) * 40)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (cached / "refs" / "main").write_text(commit)

    for place in ("~/encoder", "somebody/encoder"):
        chosen = {"method": "rag", "settings": (f"retriever={place}",)}
        write(len(list(cached.rglob("config.json"))) + 1)
        before = run_id(**chosen)
        assert run_id(**chosen) == before
        write(len(list(cached.rglob("config.json"))) + 1)
        assert run_id(**chosen) != before, place


EDITS = {
    "prompt": ('plain: "{question}"', 'plain: "Say banana. {question}"'),
    "stops": ("prompt: {templates", 'prompt: {stops: ["."], templates'),
    "leads": ("prompt: {templates", 'prompt: {leads: ["A:"], templates'),
    "delimiter": ("prompt: {templates", 'prompt: {delimiter: "", templates'),
    "joiner": ("prompt: {templates", 'prompt: {joiner: " ", templates'),
    "metrics": ("metrics: [em]", "metrics: [em, f1]"),
    "chance": ("main_metric: em", "main_metric: em\nchance: 0.1"),
    "unit": ("main_metric: em", "main_metric: em\nunit: document"),
    "columns": ("question: [question]", "question: [question, asked]"),
    "protocol": ("documents: 2", "documents: 2, max_new_tokens: 3"),
}
SAME = {
    "title": ("reader: qa_stream", "reader: qa_stream\ntitle: Another"),
    "how": ("reader: qa_stream", "reader: qa_stream\nsource: {how: Look elsewhere.}"),
    "note": ("{files: [rows]}", "{files: [rows], note: Mine}"),
    "default": ("main_metric: em", "main_metric: em\nunit: query\nchance: null"),
}


def id_of_card(folder: Path, text: str, **changes: Any) -> str:
    """The id of a run of this card, which lies in a folder of its own beside the same rows."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text('{"question": "Who?", "answers": ["Ada"], "text": "Ada."}\n' * 2)
    (folder / "mine.yaml").write_text(text)
    source = str(folder / "rows.jsonl")
    return run_id(**{"task": str(folder / "mine.yaml"), "source": source, "task_options": (), **changes})


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edited_card_is_another_run(tmp_path: Path, edit: tuple[str, str]) -> None:
    """Also where two of one name lie in two folders."""
    assert edit[0] in CARD
    before = id_of_card(tmp_path, CARD)
    assert id_of_card(tmp_path / "other", CARD) == before
    assert id_of_card(tmp_path / "other", CARD.replace(*edit)) != before
    assert id_of_card(tmp_path, CARD.replace(*edit)) != before


@pytest.mark.parametrize("edit", SAME.values(), ids=list(SAME))
def test_prose_on_a_card_is_no_part_of_a_run(tmp_path: Path, edit: tuple[str, str]) -> None:
    assert edit[0] in CARD
    assert id_of_card(tmp_path, CARD.replace(*edit)) == id_of_card(tmp_path, CARD)


def test_an_edited_prompt_is_another_run_whatever_is_typed(tmp_path: Path) -> None:
    typed = {"task_options": ("documents=1", "prompt=plain")}
    changed_prompt = CARD.replace(*EDITS["prompt"])
    assert id_of_card(tmp_path, changed_prompt, **typed) != id_of_card(tmp_path, CARD, **typed)


def test_weights_that_change_in_the_middle_are_another_run(tmp_path: Path) -> None:
    """Of a checkpoint of 100 MB."""
    checkpoint = tmp_path / "mac"
    shutil.copytree(shipped_checkpoint("mac", "streamingqa", "nano"), checkpoint)
    with (checkpoint / "more.bin").open("wb") as handle:
        handle.truncate(100 * 10**6)
    chosen = {"method": "mac", "checkpoint": str(checkpoint)}
    before = run_id(**chosen)
    assert run_id(**chosen) == before
    with (checkpoint / "more.bin").open("r+b") as handle:
        handle.seek(50 * 10**6)
        handle.write(b"x")
    assert run_id(**chosen) != before


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_defaults(reader: str) -> None:
    """Without, a new option would give its runs new ids."""
    (card, *_) = (each for name in cards.names() if (each := cards.load_card(name)).reader == reader)
    assert task_defaults(card, "hub")["paper_quirks"] is False
