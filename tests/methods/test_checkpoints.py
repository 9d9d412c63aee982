"""LoRAs of ours and of peft on the base model: the logits of peft itself, and a base as methods and records see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import Command
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import tiny_method
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import forward
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch
from ttabench.methods import checkpoints
from ttabench.methods.checkpoints import PEFT_WEIGHTS_FILE, read_header, save_peft
from ttabench.methods.lora import LoraSettings
from ttabench.methods.lora.method import Lora
from ttabench.run.evaluation import merge_checkpoint

MAKES: Mapping[str, Callable[[], LM]] = {"llama": tiny_llama, "gpt2": tiny_gpt2}


def trained(lm: LM, folder: Path) -> Lora:
    """A LoRA that changes every linear map."""
    method = Lora(lm, LoraSettings(rank=2, alpha=4.0))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(3)
        for b in method.b:
            b.normal_(std=0.2)
    checkpoints.save(method, folder, {"steps": 7})
    return method


@pytest.mark.parametrize("make", MAKES)
def test_a_base_on_a_checkpoint_is_the_base_under_its_patch(make: str, tmp_path: Path) -> None:
    lm, other = MAKES[make](), MAKES[make]()
    method = trained(lm, tmp_path / "tuned")
    ids = torch.tensor([[65, 66, 67, 68]])
    with torch.no_grad():
        expected = forward(lm, method.patch(method.begin(1), []), ids)[0]
        plain = forward(other, Patch(), ids)[0]
        before = other.fingerprint
        found = forward(merge_checkpoint(other, tmp_path / "tuned", "tuned"), Patch(), ids)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - plain).abs().max() > 0.1
    assert other.fingerprint not in (before, lm.fingerprint)
    told = other.describe()["stands_on"]
    assert (told["name"], told["training"]) == ("tuned", {"steps": 7})
    with pytest.raises(UserError, match="another base model"):
        checkpoints.load(Lora, other, tmp_path / "tuned")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_parameters_load_as_float32_from_every_stored_format(dtype: str, tmp_path: Path) -> None:
    lm = tiny_llama()
    method = trained(lm, tmp_path / "exact")
    checkpoints.save(method, tmp_path / "stored", dtype=dtype)
    stored, _ = safetensors_io.read_tensors(tmp_path / "stored" / checkpoints.WEIGHTS_FILE, hint="")
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, dtype)}
    loaded = dict(checkpoints.load(Lora, lm, tmp_path / "stored").modules().named_parameters())
    for name, exact in method.modules().named_parameters():
        assert loaded[name].dtype == torch.float32
        assert torch.equal(loaded[name], exact.to(getattr(torch, dtype)).float())


def test_a_method_that_reads_first_is_no_base(tmp_path: Path) -> None:
    lm = tiny_llama()
    checkpoints.save(tiny_method("mac", lm), tmp_path / "mac")
    with pytest.raises(UserError, match="lora as --base-checkpoint"):
        merge_checkpoint(lm, tmp_path / "mac", "mac")


IDS = torch.tensor([[65, 66, 67, 68, 97, 98]])
ALL = "all-linear"


def peft_folder(lm: LM, folder: Path, base: str = "", **options: Any) -> Path:
    """An adapter that peft made, every tensor of it moved at random: factors, magnitudes, biases, whole modules."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(5)
        lm.model.set_attn_implementation("sdpa")
        kind = options.pop("kind", LoraConfig)
        model = get_peft_model(lm.model, kind(task_type="CAUSAL_LM", **options))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.add_(
                    torch.randn_like(parameter) * (0.02 if "magnitude" in name else 0.1)
                )
        model.peft_config["default"].base_model_name_or_path = base
        model.save_pretrained(folder)
    return folder


def of_peft(make: Callable[[], LM], folder: Path) -> Tensor:
    from peft import PeftModel

    base = make().model
    base.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits: Tensor = PeftModel.from_pretrained(base, folder)(input_ids=IDS).logits
    return logits


def ours(lm: LM, patch: Patch | None = None) -> Tensor:
    """Logits of a text under a patch."""
    with torch.no_grad():
        return forward(lm, patch or Patch(), IDS)[0]


def read(lm: LM, folder: Path) -> Patch:
    method = checkpoints.load(Lora, lm, folder)
    return method.patch(method.begin(1), [])


CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "alpha 0": (
        "llama",
        {
            "target_modules": ["q_proj"],
            "lora_alpha": 0,
            "alpha_pattern": {"layers.1.self_attn.q_proj": 8},
        },
    ),
    "list": ("llama", {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 7}),
    "regex": (
        "llama",
        {
            "target_modules": r".*layers\.1\.mlp\.(up|down)_proj",
            "use_rslora": True,
            "lora_alpha": 4,
        },
    ),
    "layers": (
        "llama",
        {"target_modules": ["o_proj"], "layers_to_transform": [1], "lora_dropout": 0.1},
    ),
    "patterns": (
        "llama",
        {
            "target_modules": ALL,
            "r": 4,
            "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 1},
            "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3, ".*o_proj": 16, "proj": 5},
        },
    ),
    "conv1d": ("gpt2", {"target_modules": ALL, "fan_in_fan_out": True}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(case: str, tmp_path: Path) -> None:
    make, options = CASES[case]
    peft_folder(MAKES[make](), tmp_path, **options)
    wanted, lm = of_peft(MAKES[make], tmp_path), MAKES[make]()
    assert (wanted - ours(lm)).abs().max() > 1e-2
    torch.testing.assert_close(ours(lm, read(lm, tmp_path)), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        ours(merge_checkpoint(lm, tmp_path, "mine")), wanted, atol=1e-5, rtol=1e-5
    )


def test_an_alpha_of_0_changes_nothing(tmp_path: Path) -> None:
    lm = tiny_llama()
    peft_folder(tiny_llama(), tmp_path, target_modules=["q_proj"], lora_alpha=0)
    torch.testing.assert_close(ours(lm, read(lm, tmp_path)), ours(lm))


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": r".*(q|v)_proj"},
        {"target_modules": ALL},
    ],
)
def test_a_layer_without_its_tensors_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    peft_folder(tiny_llama(), tmp_path, **options)
    tensors, _ = safetensors_io.read_tensors(tmp_path / PEFT_WEIGHTS_FILE)
    safetensors_io.write_tensors(
        tmp_path / PEFT_WEIGHTS_FILE,
        {name: part for name, part in tensors.items() if "layers.1.self_attn.v" not in name},
    )
    with pytest.raises(UserError, match=r"layers\.1\.self_attn\.v_proj.*missing"):
        read(tiny_llama(), tmp_path)


def test_a_pickle_is_named_and_not_read(tmp_path: Path) -> None:
    peft_folder(tiny_llama(), tmp_path, target_modules=["q_proj"])
    (tmp_path / PEFT_WEIGHTS_FILE).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(UserError, match=r"adapter_model\.bin"):
        read(tiny_llama(), tmp_path)


def test_a_factor_without_dimensions_is_refused(tmp_path: Path) -> None:
    peft_folder(tiny_llama(), tmp_path, target_modules=["q_proj"])
    tensors, _ = safetensors_io.read_tensors(tmp_path / PEFT_WEIGHTS_FILE)
    name = min(tensors)
    safetensors_io.write_tensors(tmp_path / PEFT_WEIGHTS_FILE, {**tensors, name: torch.tensor(1.0)})
    with pytest.raises(UserError, match=f"{name.removeprefix(checkpoints.PEFT_KEY_PREFIX)} "):
        read(tiny_llama(), tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("base", "told"), [("someone/another-8b", 1), ("someone/Tiny-Llama-0", 0), ("", 0)]
)
def test_another_base_model_is_reported(
    base: str, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lm = tiny_llama()
    read(lm, peft_folder(tiny_llama(), tmp_path, base, target_modules=["q_proj"]))
    assert len([entry for entry in caplog.messages if base in entry]) == told
    assert lm.name == "tiny-llama-0"


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_what_is_exported_is_read_again(make: Callable[[], LM], tmp_path: Path) -> None:
    lm = make()
    deltas = {}
    for rank, name in enumerate(lm.linear_names()[:3], 1):
        features_in, features_out = lm.linear_shape(name)
        deltas[name] = LowRank(
            torch.randn(1, rank, features_in) / 10, torch.randn(1, features_out, rank) / 10
        )
    patch = Patch(deltas=deltas)
    again = read(lm, save_peft(lm, patch, tmp_path / "plain"))
    assert sorted(again.deltas) == sorted(deltas)
    torch.testing.assert_close(ours(lm, again), ours(lm, patch), atol=1e-5, rtol=1e-5)
    assert read_header(tmp_path / "plain").base_name == lm.name
    lm.set_base_checkpoint({"name": "shipped:qa"})
    # what vLLM requires of an adapter: plain LoRA, one scale, names of linear maps
    config = json.loads((tmp_path / "plain" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["lora_alpha"], config["bias"]) == (
        "LORA",
        config["r"],
        "none",
    )
    assert not any(config.get(name) for name in ("modules_to_save", "use_dora", "use_rslora"))
    assert load_file(tmp_path / "plain" / PEFT_WEIGHTS_FILE).keys() == {
        f"base_model.model.{name}.lora_{side}.weight" for name in deltas for side in "AB"
    }
    save_peft(lm, patch, tmp_path / "tuned")
    assert read_header(tmp_path / "tuned").base_name == f"{lm.name} on shipped:qa", (
        "never the base without it"
    )


@pytest.fixture
def mine(tiny_base: Path, tmp_path: Path) -> Path:
    """An adapter of the tiny base."""
    return peft_folder(
        tiny_llama(), tmp_path / "mine", str(tiny_base), r=4, target_modules=["q_proj", "v_proj"]
    )


def test_the_two_ways_to_give_one(
    ttabench: Command, common: str, tiny_base: Path, mine: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"

    def run(method: str, *words: object) -> Any:
        return ttabench(f"eval --method {method} {common}", *words, "--limit", 1, "--json").json()[
            "runs"
        ][0]

    method, under = run("lora", "--checkpoint", mine), run("none", "--base-checkpoint", mine)
    plain = run("none")
    assert under["id"] != plain["id"]
    assert under["model"]["stands_on"]["name"] == method["config"]["checkpoint"] == str(mine)
    assert (
        under["model"]["stands_on"]["training"]["kind"]
        == method["method"]["training"]["kind"]
        == "peft"
    )
    settings = method["method"]["settings"]
    assert (settings["rank"], settings["targets"], method["method"]["parameters"]) == (
        4,
        ["q_proj", "v_proj"],
        896,
    )
    one, other, base = (
        next(row["value"] for row in ran["rows"] if row["metric"] == "answer_nll")
        for ran in (method, under, plain)
    )
    assert one == pytest.approx(other, abs=1e-5)
    assert abs(one - base) > 1e-3
    assert (
        f"--model {tiny_base} --base-checkpoint {mine}"
        in ttabench("show", under["id"], "--out", runs).out
    )
    assert f"--checkpoint {mine}" in ttabench("show", method["id"], "--out", runs).out
    assert ttabench("compare", runs).code == 0
    tensors, _ = safetensors_io.read_tensors(mine / PEFT_WEIGHTS_FILE)
    safetensors_io.write_tensors(
        mine / PEFT_WEIGHTS_FILE, {name: tensor * 1.001 for name, tensor in tensors.items()}
    )
    assert run("lora", "--checkpoint", mine)["id"] != method["id"]
    assert run("none", "--base-checkpoint", mine)["id"] != under["id"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias=all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens"),
        ({"target_modules": ["lm_head"]}, "does not fit"),
    ],
)
def test_what_is_no_change_of_linear_maps_is_refused(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    peft_folder(tiny_llama(), tmp_path, **{"target_modules": ["q_proj"], **options})
    with pytest.raises(UserError, match=f"{told}.*merge_and_unload"):
        read(tiny_llama(), tmp_path)


@pytest.mark.parametrize(
    "training",
    [
        {"config": 5},
        {"config": {"data": 5}},
        {"config": {"data": {"also": 5}}},
        {"config": {"seed": "x"}},
    ],
    ids=str,
)
def test_a_header_whose_training_is_none_is_refused(
    tmp_path: Path, training: dict[str, Any]
) -> None:
    trained(tiny_llama(), tmp_path)
    path = tmp_path / "adapter.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"training": training}))
    with pytest.raises(UserError, match=r"adapter\.json"):
        read_header(tmp_path)


def test_a_checkpoint_replaces_only_what_ttabench_wrote(tmp_path: Path) -> None:
    trained(tiny_llama(), tmp_path / "ours")
    trained(tiny_llama(), tmp_path / "ours")
    for name in ("adapter.json", "adapter.safetensors", "curve.jsonl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("mine")
        with pytest.raises(UserError, match=name):
            trained(tiny_llama(), tmp_path / name)
        assert (tmp_path / name / name).read_text() == "mine"
