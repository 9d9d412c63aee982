"""A run's id changes with every choice that changes figures, and with no new setting that is left at its default."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ttabench.core.digests import non_default_values
from ttabench.methods import registry
from ttabench.methods.settings import default_settings
from ttabench.methods.spec import MethodSpec
from ttabench.readers import READERS, cards, qa_stream
from ttabench.readers.sources import default_options as default_options
from ttabench.records.run_fields import RunConfig
from ttabench.run import resolve
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

SMALL = {"documents": 2, "questions": 2}
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
        "Wider",
        [("sharpness", float, field(default=1.0))],
        bases=(spec.Settings,),
        frozen=True,
        kw_only=True,
    )
    return replace(
        spec,
        Settings=made,
        presets={name: made(**asdict(each)) for name, each in spec.presets.items()},
    )


@pytest.mark.parametrize(
    "chosen",
    [
        {"method": "icl"},
        {"method": "templora", "preset": "nano"},
        {"method": "mac"},
        {"method": "mac", "checkpoint": "none", "settings": {"hierarchy": 16}},
    ],
    ids=str,
)
def test_a_new_setting_of_a_method_leaves_ids(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    before, found = run_id(**chosen), wider(registry.find_method(chosen["method"]))
    monkeypatch.setattr(resolve.registry, "find_method", lambda _: found)
    assert run_id(**chosen) == before
    typed = chosen.get("settings", {})
    assert run_id(**{**chosen, "settings": {**typed, "sharpness": 1.0}}) == before
    assert run_id(**{**chosen, "settings": {**typed, "sharpness": "2"}}) != before


def test_ids_of_groups_stay() -> None:
    """As committed runs have them, from before groups could be told by documents."""
    groups = {"kind": "grouped", "group_tokens": "128"}
    assert run_id(1, task_options=groups) == "4b306f8797fb"
    assert run_id(1, task_options={**groups, "group_documents": 4}) != "4b306f8797fb"


def test_a_new_option_of_a_task_leaves_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_id()

    class Wider(qa_stream.Settings):
        pauses: int = 0

    monkeypatch.setattr(qa_stream, "Settings", Wider)
    plan = make_plan(request(), 0)
    assert plan.config.task_options["pauses"] == 0, "the record keeps every option"
    assert plan.config.identity() == before
    assert run_id(task_options={**SMALL, "pauses": 1}) != before


def test_a_new_option_of_eval_leaves_ids() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wider(RunConfig):
        temperature: float = 0.0

    said = {"method": "icl", "task": "t", "limit": 3}
    assert Wider(**said).identity() == RunConfig(**said).identity()
    assert Wider(**said, temperature=0.5).identity() != RunConfig(**said).identity()


def test_a_default_that_is_typed_is_the_default() -> None:
    assert run_id(settings={"truncate": "error"}) == run_id()
    options = make_plan(request(), 0).config.task_options
    assert run_id(task_options=options) == run_id()


def test_a_preset_is_its_settings() -> None:
    spec = registry.find_method("snapkv")
    (preset,) = {"streamadapter"} & spec.presets.keys()
    changes = non_default_values(asdict(spec.presets[preset]), default_settings(spec))
    assert changes
    assert (
        run_id(method="snapkv", preset=preset)
        == run_id(method="snapkv", settings=changes)
        != run_id(method="snapkv")
    )


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
        {"max_context": 4096},
        {"max_context": 8192},
        {"settings": {"truncate": "left"}},
        {"settings": {"truncate": "right"}},
        {"settings": {"max_tokens": 64}},
        {"task_options": {"documents": 3, "questions": 2}},
        {"task_options": {"documents": 2, "questions": 1}},
        {"task_options": {**SMALL, "max_new_tokens": 3}},
        {"dtype": "bfloat16"},
        {"batch_size": 1},
        {"state_of": "none"},
        {"state_of": "other"},
        {"bos": "no"},
        {"base_checkpoint": "shipped:lora-superglue"},
        {"method": "mac"},
        mac,
        {"method": "mac", "checkpoint": "shipped:mac-squad_seq"},
        {**mac, "settings": {"hierarchy": 16}},
    ]
    ids = [run_id(**each) for each in chosen]
    assert len(set(ids)) == len(ids), [
        each for each, found in zip(chosen, ids, strict=True) if ids.count(found) > 1
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"source": "hub"},
        {"ask_only": True},
        {"chat_template": True},
        {"verb": "train"},
        {"model": "gpt2"},
        *(
            {"inputs": {name: "12"}}
            for name in (
                "rows",
                "model",
                "method",
                "checkpoint",
                "base_checkpoint",
                "state",
                "card",
                "reader",
            )
        ),
    ],
    ids=str,
)
def test_what_a_plan_here_cannot_have_changes_the_id_too(change: dict[str, Any]) -> None:
    base = {"method": "icl", "task": "t"}
    assert RunConfig(**{**base, **change}).identity() != RunConfig(**base).identity()


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0, None), (None, "none"), ([1], 1)]
)
def test_values_that_python_takes_for_equal_are_reported_apart(one: Any, other: Any) -> None:
    """A budget of 1.0 is all of a text, one of 1 is a token of it."""
    configs = [RunConfig(method="m", settings={"budget": each}) for each in (one, other)]
    assert configs[0].identity() != configs[1].identity()
    assert non_default_values({"budget": one}, {"budget": other}) == {"budget": one}
    assert non_default_values({"budget": one}, {"budget": one}) == {}


def test_a_folder_that_a_setting_names_is_what_it_holds(tmp_path: Path) -> None:
    chosen = {
        "method": "mac",
        "checkpoint": "none",
        "settings": {"amortiser": str(tmp_path / "t5")},
    }
    before = run_id(**chosen)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "model.safetensors").write_text("1")
    there = run_id(**chosen)
    assert run_id(**chosen) == there != before
    (tmp_path / "t5" / "model.safetensors").write_text("2")
    assert run_id(**chosen) not in (before, there)


EDITS = {
    "prompt": ('plain: "{question}"', 'plain: "Say banana. {question}"'),
    "stops": ("prompt: {templates", 'prompt: {stops: ["."], templates'),
    "metrics": ("metrics: [em]", "metrics: [em, f1]"),
}


def id_of_card(folder: Path, text: str, **changes: Any) -> str:
    """The id of a run of this card, which lies in a folder of its own beside the same rows."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text(
        '{"question": "Who?", "answers": ["Ada"], "text": "Ada."}\n' * 2
    )
    (folder / "mine.yaml").write_text(text)
    source = str(folder / "rows.jsonl")
    return run_id(
        **{"task": str(folder / "mine.yaml"), "source": source, "task_options": {}, **changes}
    )


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edited_card_is_another_run(tmp_path: Path, edit: tuple[str, str]) -> None:
    """Also where two of one name lie in two folders."""
    assert edit[0] in CARD
    before = id_of_card(tmp_path, CARD)
    assert id_of_card(tmp_path / "other", CARD) == before
    assert id_of_card(tmp_path / "other", CARD.replace(*edit)) != before
    assert id_of_card(tmp_path, CARD.replace(*edit)) != before


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_defaults(reader: str) -> None:
    """Without, a new option would give its runs new ids."""
    (card, *_) = (each for each in cards.CARDS.values() if each.reader == reader)
    assert default_options(card, "hub")
