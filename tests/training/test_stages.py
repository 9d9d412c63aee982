"""Trainings of several stages: a LoRA first, added to the base, then the method on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ttabench as package
from tests.conftest import SMALL_MAC_OPTIONS, Command, error_line
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.core.digests import digest_path
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods import checkpoints
from ttabench.methods.checkpoints import read_header
from ttabench.methods.lora import LoraSettings
from ttabench.methods.lora.method import Lora
from ttabench.methods.mac import MAC as SPEC
from ttabench.methods.registry import find_method
from ttabench.methods.spec import Recipe, Stage
from ttabench.run.evaluation import merge_checkpoint
from ttabench.training import training_state

TUNED = Recipe(steps=2, lr=1e-2, documents=(1,))
SMALL = "--steps 2 --documents 1 --questions 1"


@pytest.fixture
def _two_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAC's recipe begins with two steps of LoRA."""
    recipe = Recipe(first=Stage(settings={"rank": 2}, recipe=TUNED))
    monkeypatch.setitem(SPEC.recipes, "nano", recipe)  # type: ignore[call-overload]


def train_mac(base: Path, out: Path) -> str:
    options = f"{SMALL_MAC_OPTIONS} --model {base} --source mini {SMALL}"
    return f"train --method mac {options} --out {out} --json"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter.safetensors")


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.usefixtures("_two_stages")
def test_two_stages_equal_two_commands(
    ttabench: Command, common: str, tiny_base: Path, tmp_path: Path
) -> None:
    staged, first, second = tmp_path / "staged", tmp_path / "first", tmp_path / "second"
    assert ttabench(train_mac(tiny_base, staged)).json()["folder"] == str(staged)
    under = read_header(staged).stands_on
    assert under == {"name": str(staged / "first"), "digest": digest_path(staged / "first")}
    assert (read_header(staged / "first").method, read_header(staged / "first").step) == ("lora", 2)

    tuning = f"--set rank=2 --model {tiny_base} --source mini --steps 2 --lr 1e-2 --documents 1"
    assert ttabench(f"train --method lora {tuning} --out {first}").code == 0
    assert ttabench(f"{train_mac(tiny_base, second)} --base-checkpoint {first}").code == 0
    assert not (second / "first").exists(), "the base stands on a checkpoint already"
    assert same(first, staged / "first")
    assert same(second, staged)

    asked = f"eval --method mac {common} --checkpoint {staged} --limit 1"
    (run,) = ttabench(f"{asked} --json --base-checkpoint {staged / 'first'}").json()["runs"]
    assert run["model"]["stands_on"]["name"] == str(staged / "first")
    refused = error_line(ttabench(asked))
    assert f"--base-checkpoint {staged / 'first'}" in refused


@pytest.mark.usefixtures("_two_stages")
def test_the_same_command_goes_on_where_a_stage_was_lost(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    """A stage that is done stays as it is; the next one ends where it would have ended."""
    out = tmp_path / "out"
    given = f"{train_mac(tiny_base, out)} --save-every 1"
    assert ttabench(given).code == 0
    before, stamp = weights(out), digest_path(out / "first")
    training_state.discard(out)  # as after a kill between the stages
    assert ttabench(given).code == 0
    assert digest_path(out / "first") == stamp
    assert all(torch.equal(before[name], each) for name, each in weights(out).items())


def tuned(lm: LM, folder: Path, seed: int) -> Lora:
    """A LoRA that changes every linear map, trained on what the base stands on."""
    method = Lora(lm, LoraSettings(rank=2, alpha=4.0))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for b in method.b:
            b.normal_(std=0.2)
    under = {key: lm.stands_on[key] for key in ("name", "digest")} if lm.stands_on else {}
    checkpoints.save(method, folder, stands_on=under)
    return method


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_a_chain_of_checkpoints_is_stood_on_from_the_bottom(
    make: Callable[[], LM], tmp_path: Path
) -> None:
    lm, top, bottom = make(), tmp_path / "top", tmp_path / "bottom"
    first = tuned(lm, bottom, 3)
    ids = torch.tensor([[65, 66, 67, 68]])
    merge_checkpoint(lm, bottom, str(bottom))
    second = tuned(lm, top, 4)
    other = merge_checkpoint(make(), top, str(top))
    deltas = first.patch(first.begin(1), []) + second.patch(second.begin(1), [])
    with torch.no_grad():
        expected = forward(make(), deltas, ids)[0]
        torch.testing.assert_close(forward(other, Patch(), ids)[0], expected, atol=1e-3, rtol=1e-3)
    told = other.describe()["stands_on"]
    assert (told["name"], told["stands_on"]["name"]) == (str(top), str(bottom))
    checkpoints.load(Lora, lm, top)  # on what it was trained on

    with (bottom / "adapter.json").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match="has changed since"):
        merge_checkpoint(make(), top, str(top))
    bottom.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=str(bottom)):
        merge_checkpoint(make(), top, str(top))


# --- a method that goes on from itself --------------------------------------------------------------------------------

SIZES = "--set inner=8 --set rank=2 --set chunk=64 --set init=aligned --set buffer=true --set gradient=exact".split()
OF_TEXTS = Recipe(steps=2, lr=1e-2, documents=(2,), schedule="cosine")


@pytest.fixture
def _texts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generative Adapter's recipe begins with two steps on texts alone."""
    stage = Stage(
        method="generative_adapter", settings={"objective": "reconstruction"}, recipe=OF_TEXTS
    )
    monkeypatch.setitem(find_method("generative_adapter").recipes, "nano", Recipe(first=stage))  # type: ignore[index]


def generative(tiny_base: Path, out: Path, *more: object) -> list[object]:
    words: list[object] = [
        "--method",
        "generative_adapter",
        *SIZES,
        "--model",
        tiny_base,
        "--source",
        "mini",
    ]
    return ["train", *words, "--steps", 2, "--documents", 2, "--out", out, "--json", *more]


@pytest.mark.usefixtures("_texts_first")
def test_a_method_goes_on_from_its_own_first_stage(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    """As two commands do; what the first stage changed is as the second one says; the start is drawn once."""
    staged, first, second = tmp_path / "staged", tmp_path / "one", tmp_path / "two"
    assert ttabench(*generative(tiny_base, staged, "--preset", "nano")).code == 0
    learned = ("--set", "objective=reconstruction", "--lr", 1e-2, "--schedule", "cosine")
    assert ttabench(*generative(tiny_base, first, *learned)).code == 0
    assert (
        ttabench(
            *generative(tiny_base, second, "--checkpoint", first, "--set", "objective=answer")
        ).code
        == 0
    )
    assert same(first, staged / "first")
    assert same(second, staged)
    assert not same(first, second)
    assert (
        read_header(staged / "first").settings["objective"],
        read_header(staged).settings["objective"],
    ) == ("reconstruction", "answer")
    assert read_header(staged).stands_on == {}
    config = read_header(staged).training["config"]
    assert config["data"]["begins"] == digest_path(staged / "first")
    assert config["fresh"] is False
    third, alone = tmp_path / "three", tmp_path / "four"
    assert ttabench(*generative(tiny_base, third, "--checkpoint", first)).code == 0
    assert not (third / "first").exists(), "there is a checkpoint to begin from"
    assert ttabench(*generative(tiny_base, alone, "--preset", "nano", *learned)).code == 0
    assert same(alone, first), "the first stage is all that was asked for"
    assert not (alone / "first").exists()


def test_training_from_python_equals_the_command(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    typed, called = tmp_path / "typed", tmp_path / "called"
    words = f"train --method lora --set rank=2 --model {tiny_base} --source mini {SMALL}"
    ran = ttabench(f"{words} --lr 0.01 --out {typed} --json")
    assert ran.code == 0, ran.err
    settings = {
        "method": "lora",
        "model": str(tiny_base),
        "source": "mini",
        "settings": {"rank": 2},
    }
    record = package.train(**settings, out=called, steps=2, documents=(1,), questions=1, lr=0.01)
    assert (record.steps, record.losses[-1]) == (2, pytest.approx(ran.json()["loss"]))
    assert same(typed, called)
    assert (
        read_header(typed).training["config"]["data"]
        == read_header(called).training["config"]["data"]
    )
    assert (
        package.train(**settings, out=called, steps=2, documents=1, questions=1, lr=0.01).losses
        == record.losses
    )
    one_more = package.train(**settings, out=called, steps=3, documents=(1,), questions=1, lr=0.01)
    assert (one_more.steps, one_more.losses[:2]) == (3, record.losses), "it goes on from there"
    with pytest.raises(UserError, match=r"Unknown field of a recipe 'step'"):
        package.train("lora", out=called, step=2)
