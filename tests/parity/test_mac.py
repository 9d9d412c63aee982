"""MAC against the numbers of its authors' released code on a tiny T5 and GPT-2 (shared/fixtures/mac)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5Config

from tests.parity.fixtures import base_lm, load
from ttabench.core.types import Chunk, Episode, Query, Score
from ttabench.lm.forward.patching import forward
from ttabench.lm.patch import Patch
from ttabench.methods.mac import MacSettings
from ttabench.methods.mac.method import loss_parts
from ttabench.methods.mac.networks import MacNetworks, aggregate_hierarchy, apply_by_group

KEYS = {"gpt2": "out/qa_logits", "llama": "out/qa_logits_llama"}
BASES = [(kind, key) for kind, key in KEYS.items() if key in load("mac").tensors]

PARTS = {
    "norm1": "norm",
    "norm_context": "bank_norm",
    "attn.to_q": "query",
    "attn.to_k": "key",
    "attn.to_v": "value",
    "attn.to_out.0": "out",
    "norm2": "feed_norm",
    "mlp.net.0": "feed_in",
    "mlp.net.3": "feed_out",
}
SLOTS = {"skip": "skip", "mlp.0": "norm", "mlp.1": "lift", "mlp.3": "mix"}
EXPANSION = {"net.0": "norm", "net.1": "feed_in", "net.4": "feed_out"}


def located(key: str) -> tuple[str, int | None, bool] | None:
    """Parameter of `MacNetworks` that a tensor of the fixture is, slot in it, whether transposed; None if tied."""
    encoder = "input_encoder" if key.startswith("aggregator.") else "amortiser"
    if found := re.fullmatch(r"aggregator\.cross_attention_list\.(\d+)\.(.+)\.(weight|bias)", key):
        return f"aggregator.blocks.{found[1]}.{PARTS[found[2]]}.{found[3]}", None, False
    if found := re.fullmatch(r"(?:aggregator\.)?mlps\.(\d+)\.(.+)\.(weight|bias)", key):
        part = SLOTS[found[2]]
        return (
            f"{encoder}.{part}.{found[3]}",
            int(found[1]),
            part != "norm" and found[3] == "weight",
        )
    if found := re.fullmatch(r"token_SA\.mlp_layers\.(\d+)\.(.+)\.(weight|bias)", key):
        part = EXPANSION[found[2]]
        return (
            f"expansion.expand.{part}.{found[3]}",
            int(found[1]),
            part != "norm" and found[3] == "weight",
        )
    rest = key.removeprefix("aggregator.question_encoder.").removeprefix("enc_decoder.")
    if rest == "learnable_prompts":
        return f"{encoder}.prompts", None, False
    return None if rest.endswith("embed_tokens.weight") else (f"{encoder}.t5.{rest}", None, False)


def piece(parameter: Tensor, slot: int | None, transposed: bool) -> Tensor:
    one = parameter if slot is None else parameter[slot]
    return one.T if transposed else one


class Rows:
    """In place of a tokenizer: text "3" is row 3 of the fixture's ids, with the fixture's padding."""

    tokenizer: Any = None

    def __init__(self, ids: Tensor, mask: Tensor) -> None:
        self.ids, self.mask = ids, mask

    def encode(self, texts: list[str], *_limits: object) -> tuple[list[list[int]], list[int]]:
        return [[int(text)] for text in texts], [1] * len(texts)

    def pad(self, rows: list[list[int]], _length: int = 0) -> tuple[Tensor, Tensor]:
        chosen = [row[0] for row in rows]
        return self.ids[chosen], self.mask[chosen]


class Reference:
    """The fixture and our networks with its weights."""

    def __init__(self, folder: Path, kind: str = "gpt2", **settings: Any) -> None:
        fixture = load("mac")
        self.spec, self.tensors = fixture.spec, fixture.tensors
        config = self.spec["config"]
        for name in ("t5", "t5_q"):
            T5Config(**config[name]).save_pretrained(folder / name)
        self.lm = base_lm(kind, config[kind], fixture.under(f"base_{kind}"))
        defaults = {
            "amortiser": str(folder / "t5"),
            "input_encoder": str(folder / "t5_q"),
            "num_virtual_tokens": config["mac"]["num_virtual_tokens"],
            "prefix_length": config["mac"]["layer_num_virtual_tokens"],
            "blocks": config["mac"]["num_cross_attention_blocks"],
            "mask_pads": False,
            "lite": "released",
        }
        self.networks = MacNetworks(self.lm, MacSettings(**{**defaults, **settings}))
        inputs = [
            self.tensors[f"input/{name}"] for name in ("text_ids_amort", "text_attention_amort")
        ]
        self.networks.document_tokenizer = Rows(*inputs)  # type: ignore[assignment]
        inputs = [
            self.tensors[f"input/{name}"] for name in ("gen_q_ids_amort", "gen_q_attn_mask_amort")
        ]
        self.networks.question_tokenizer = Rows(*inputs)  # type: ignore[assignment]
        self._load()

    def _load(self) -> None:
        ours, filled = dict(self.networks.named_parameters()), set()
        for key, tensor in self.tensors.items():
            if (
                key.startswith("state/")
                and (place := located(key.removeprefix("state/"))) is not None
            ):
                with torch.no_grad():
                    target = piece(ours[place[0]], *place[1:])
                    target.copy_(tensor.view_as(target))
                filled.add(place[0])
        assert filled == set(ours), set(ours) - filled

    def check(self, actual: Tensor, key: str, where: Tensor | None = None) -> None:
        """Compare, everywhere or where a mask is true (logits of padding carry no meaning)."""
        expected, actual = self.tensors[key], actual.detach()
        if where is not None:
            actual, expected = actual[where], expected[where]
        torch.testing.assert_close(actual, expected, **self.spec["tolerance"]["outputs"])

    def episode(self) -> Episode:
        """The fixture's batch as documents and `score` queries.

        A query's prompt is the row that the input encoder reads; what the base model reads stands in its key.
        """
        asks = []
        for row, (ids, targets) in enumerate(
            zip(self["qa_ids"], self["qa_target_ids"], strict=True)
        ):
            words = [f"w{token}" for token, target in zip(ids, targets, strict=True) if target >= 0]
            read = " ".join(f"w{token}" for token in ids[: int((targets >= 0).nonzero()[0])])
            asks.append(
                Query(prompt=str(row), key=read, want=Score(continuation=f" {' '.join(words)}"))
            )
        observes = [Chunk(text=str(row)) for row in range(len(asks))]
        return Episode(key="fixture", steps=(*observes, *asks))

    @property
    def rows(self) -> int:
        """Documents, and as many questions."""
        return len(self["text_ids_amort"])

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[f"input/{name}"]


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    return Reference(tmp_path)


@pytest.fixture
def own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base model reads the query's key, see `Reference.episode`."""
    monkeypatch.setattr(
        "ttabench.methods.trainable.prompt_ids", lambda lm, ask, **_: lm.encode(ask.key)
    )


def test_documents_become_the_bank(reference: Reference) -> None:
    amortiser = reference.networks.amortiser
    ids, mask = reference["text_ids_amort"], reference["text_attention_amort"]
    reference.check(amortiser.hidden(ids, mask), "out/doc_hidden")
    reference.check(amortiser(ids, mask), "out/bank")


def test_questions_become_query_tokens(reference: Reference) -> None:
    encoder = reference.networks.input_encoder
    ids, mask = reference["gen_q_ids_amort"], reference["gen_q_attn_mask_amort"]
    reference.check(encoder.hidden(ids, mask), "out/q_hidden")
    reference.check(encoder(ids, mask), "out/cond_0")


def test_aggregation_block_by_block(reference: Reference) -> None:
    x_BTD, bank_KTD = reference.tensors["out/cond_0"], reference.tensors["out/bank"]
    x, bank = x_BTD.flatten(0, 1)[None], bank_KTD.flatten(0, 1)[None]
    for index, layer in enumerate(reference.networks.aggregator.blocks):
        x = layer(x, bank, None)
        reference.check(x.view_as(x_BTD), f"out/cond_{index + 1}")
    latent = reference.networks.aggregator(x_BTD[None], bank_KTD[None])
    reference.check(latent[0], "out/latent")


def test_expansion_to_a_prefix(reference: Reference) -> None:
    expansion = reference.networks.expansion
    reference.check(expansion.expand(reference.tensors["out/latent"]), "out/actual_tokens")  # type: ignore[operator]
    prefix = reference.networks.modulate(reference.tensors["out/latent"]).prefix
    assert prefix is not None
    layers = [
        torch.stack(pair) for pair in zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True)
    ]
    reference.check(torch.stack(layers), "out/prompts")
    assert prefix.next_position_B.tolist() == [reference.spec["dims"]["Lv"]] * reference.rows


def whole(reference: Reference) -> Patch:
    networks = reference.networks
    bank = networks.encode_documents([[row] for row in range(reference.rows)])
    x = networks.encode_questions([str(row) for row in range(reference.rows)])
    return networks.modulate(networks.aggregator(x[None], bank[None])[0])


@pytest.mark.parametrize(("kind", "key"), BASES)
def test_logits_from_texts_to_answers(tmp_path: Path, kind: str, key: str) -> None:
    reference = Reference(tmp_path, kind)
    mask = reference["qa_attention"].bool()
    logits, _ = forward(reference.lm, whole(reference), reference["qa_ids"], mask)
    reference.check(logits, key, mask)


@pytest.mark.parametrize("name", ["full", "lift"])
@pytest.mark.usefixtures("own_prompts")
def test_losses_and_gradients(tmp_path: Path, name: str) -> None:
    carrying = load("mac").spec["config"]["lift_ratio"] if name == "lift" else 1.0
    reference = Reference(tmp_path, backprop_dropout=1.0 - carrying)
    reference.networks.train()
    loss = loss_parts(reference.networks, [reference.episode()])["answer"]
    tolerance = reference.spec["tolerance"]["losses"]
    torch.testing.assert_close(
        loss.detach(), reference.tensors[f"out/loss_{name}"], rtol=0.0, **tolerance
    )
    loss.backward()  # type: ignore[no-untyped-call]
    ours = dict(reference.networks.named_parameters())
    compared = 0
    for key, expected in reference.tensors.items():
        place = (
            located(key.removeprefix(f"grad_{name}/")) if key.startswith(f"grad_{name}/") else None
        )
        if place is None:
            continue
        gradient = ours[place[0]].grad
        assert gradient is not None, place[0]
        worst = (piece(gradient, *place[1:]).reshape(expected.shape) - expected).abs().max()
        assert worst <= 1e-3 * expected.abs().max() + 1e-7, (key, float(worst))
        compared += 1
    assert compared == sum(key.startswith(f"grad_{name}/") for key in reference.tensors)


def test_hierarchy_level_by_level(reference: Reference) -> None:
    """Question 0; the fixture's own: groups of two, 5 documents, then 3 entries, then 2, then the final latent."""
    aggregator, x = reference.networks.aggregator, reference.tensors["out/cond_0"][:1]
    level, group = reference.tensors["out/bank"][None], reference.spec["config"]["hier_window"]
    levels = sorted(key for key in reference.tensors if key.startswith("out/hier_level_"))
    for key in (*levels, "out/hier_final"):
        level = apply_by_group(aggregator, x, level, group)
        reference.check(level[0], key)
    final = aggregate_hierarchy(aggregator, x, reference.tensors["out/bank"], group=group)
    reference.check(final, "out/hier_final")


def test_with_ordinary_masks(tmp_path: Path) -> None:
    reference = Reference(tmp_path, mask_pads=True)
    networks = reference.networks
    ids, mask = reference["text_ids_amort"], reference["text_attention_amort"]
    reference.check(networks.amortiser.hidden(ids, mask), "out/masked_doc_hidden")
    bank = networks.amortiser(ids, mask)
    reference.check(bank, "out/masked_bank")
    ids, mask = reference["gen_q_ids_amort"], reference["gen_q_attn_mask_amort"]
    reference.check(networks.input_encoder.hidden(ids, mask), "out/masked_q_hidden")
    reference.check(
        networks.aggregator(networks.input_encoder(ids, mask)[None], bank[None])[0],
        "out/masked_latent",
    )
