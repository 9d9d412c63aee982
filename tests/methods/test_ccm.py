"""CCM and what it is compared with: two routes with the same numbers, memories, and a stream."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_gpt2, tiny_llama, tinyllama_shaped
from tests.tiny_methods import make_chunks, make_queries
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Episode, Query, Score, Step
from ttabench.lm.forward.patching import prefill
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods import checkpoints
from ttabench.methods.ccm.compressive import Compressive
from ttabench.methods.ccm.method import Ccm, Gisting, GistingOnline
from ttabench.methods.parts.one_forward import Row, group_by_length
from ttabench.methods.trainable import answer_loss

CCM_WAYS: list[dict[str, Any]] = [
    {**first, **second}
    for first, second in product(
        ({}, {"update": "merge"}),
        (
            {},
            {"sink": True},
            {"recursive": False},
            {"recursive": False, "sink": True},
            {"conditional": False},
        ),
    )
]
WAYS: list[tuple[type[Any], dict[str, Any]]] = [
    *((Ccm, way) for way in CCM_WAYS),
    *((Gisting, {"conditional": conditional}) for conditional in (True, False)),
    *((Compressive, {"ratio": ratio}) for ratio in (3, 8)),
    *((Compressive, {"ratio": 4, "slots": slots}) for slots in (1, 3, 11)),
]
FOUR = ("Ada Voss lives in Port Ansel.", "She keeps bees.", "It rains.", "Bob is late again.")


def trained(cls: type[Any], lm: LM, **settings: Any) -> Any:
    """With deltas that are not zero, and kernels that are no means."""
    sizes = {"rank": 2} if cls is Compressive else {"rank": 2, "comp_tokens": 3}
    method = cls(lm, cls.spec.Settings(**{**sizes, **settings}))
    generator = torch.Generator().manual_seed(1)
    for parameter in (*method.b, *getattr(method, "kernels", ())):
        parameter.data.add_(
            torch.randn(parameter.shape, generator=generator) * (0.1 if cls is Compressive else 0.3)
        )
    return method


def ccm(lm: LM, **settings: Any) -> Ccm:
    made: Ccm = trained(Ccm, lm, **settings)
    return made


def episodes() -> list[Episode]:
    """Of unequal pieces, with questions between them and before any is read."""
    first: list[Step] = [
        *make_chunks("Ada Voss lives in Port Ansel.", "She keeps bees."),
        *make_queries("Where?", "Who is it?"),
        *make_chunks("It rains."),
    ]
    third = Query(prompt="And then?", want=Score(continuation=" It snowed."), key="then")
    return [
        Episode(key="one", steps=(*first, *make_queries("Where does Ada live?"))),
        Episode(
            key="two", steps=(*make_queries("Where does Ada live?"), *make_chunks(*FOUR), third)
        ),
    ]


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize(
    "way", WAYS, ids=lambda way: " ".join((way[0].__name__, *map(str, way[1].values())))
)
@torch.no_grad()
def test_one_forward_gives_the_loss_of_reading_chunk_by_chunk(
    base: Callable[[], LM], way: tuple[Any, Any]
) -> None:
    method = trained(way[0], base(), **way[1])
    told = method.loss_parts(episodes())["answer"]
    torch.testing.assert_close(told, answer_loss(method, episodes()), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("update", ["concat", "merge"])
@torch.no_grad()
def test_rows_of_other_lengths_and_of_no_chunk_count_by_their_answers(update: str) -> None:
    """Rows of about one length share a forward; an episode may ask before anything is read."""
    method = ccm(tiny_llama(), update=update)
    bare, (long, other) = Episode(key="bare", steps=tuple(make_queries("Who?"))), episodes()
    rows = [Row(ids=[0] * length) for length in (10, 30, 11, 12, 13)]
    assert [[len(row.ids) for row in group] for group in group_by_length(rows)] == [
        [10, 11, 12],
        [13],
        [30],
    ]
    mixed = [bare, long, other]
    torch.testing.assert_close(
        method.loss_parts(mixed)["answer"], answer_loss(method, mixed), atol=1e-4, rtol=1e-5
    )
    assert len(group_by_length([method.episode_row(episode) for episode in mixed])) > 1


def keys(method: Any, *texts: str) -> Tensor:
    """Of a memory of texts that were read one after the other."""
    state = method.begin(1)
    for piece in make_chunks(*texts):
        state = method.adapt(state, [[piece]])
    found: Tensor = state.tensors["keys"]
    return found


def test_a_later_chunk_depends_on_an_earlier_one_through_the_memory_alone() -> None:
    lm = tinyllama_shaped()  # the first layer of a COMP token knows no text: two do not tell

    def newest(recursive: bool, first: str) -> Tensor:
        return keys(ccm(lm, recursive=recursive), first, "Then came May.")[..., -3:, :]

    apart = [
        (newest(recursive, "Ada keeps bees.") - newest(recursive, "Bob keeps cats."))
        .abs()
        .max()
        .item()
        for recursive in (False, True)
    ]
    assert apart[0] < 1e-6 < 1e-4 < apart[1]


@pytest.mark.parametrize("given", ["piece", "prompt"])
def test_ids_of_comp_tokens_are_none_of_a_text(given: str) -> None:
    """They stand right behind the vocabulary: a text cut with another model's tokenizer might bring them."""
    lm = tiny_llama()
    method, last, behind = ccm(lm), lm.vocab_size - 1, lm.vocab_size
    told = f"token id {behind:,}"

    def episode(token: int) -> Episode:
        ids = (5, token) if given == "piece" else ()
        want = Score(continuation="x", prompt_ids=(5, token) if given == "prompt" else ())
        return Episode(
            key="one",
            steps=(Chunk(text="..", joiner="", ids=ids), Query(prompt="..", want=want, key="q")),
        )

    for loss in (
        lambda token: method.loss_parts([episode(token)]),
        lambda token: answer_loss(method, [episode(token)]),
    ):
        loss(last)
        with pytest.raises(UserError, match=told):
            loss(behind)


@torch.no_grad()
def test_of_one_chunk_gisting_whole_and_online_are_one_and_of_several_not() -> None:
    lm = tinyllama_shaped()
    one = [Episode(key="one", steps=(*make_chunks(FOUR[0]), *make_queries("Where?", "Who is it?")))]
    several = [Episode(key="all", steps=(*make_chunks(*FOUR), *make_queries("Where?")))]
    whole, online = trained(Gisting, lm), trained(GistingOnline, lm)
    torch.testing.assert_close(answer_loss(whole, one), answer_loss(online, one))
    assert (answer_loss(whole, several) - answer_loss(online, several)).abs() > 1e-4
    torch.testing.assert_close(whole.loss_parts(several), online.loss_parts(several))


def test_gisting_reads_everything_again() -> None:
    method = trained(Gisting, tinyllama_shaped())
    at_once = method.adapt(method.begin(1), [[piece] for piece in make_chunks(*FOUR)])
    torch.testing.assert_close(keys(method, *FOUR), at_once.tensors["keys"])
    assert at_once.tensors["keys"].shape[3] == 3
    assert len(at_once.tensors["tokens"][0]) == at_once.meta["tokens_read"][0]


def test_gisting_online_is_ccm_without_recursion() -> None:
    lm = tinyllama_shaped()
    assert torch.equal(
        keys(trained(GistingOnline, lm), *FOUR), keys(ccm(lm, recursive=False), *FOUR)
    )


def test_a_checkpoint_of_gisting_is_one_of_gisting_online_and_of_no_other(tmp_path: Path) -> None:
    lm = tiny_llama()
    whole = trained(Gisting, lm)
    checkpoints.save(whole, tmp_path)
    online = checkpoints.load(GistingOnline, lm, tmp_path)
    assert isinstance(online, GistingOnline)
    assert torch.equal(keys(online, FOUR[0]), keys(whole, FOUR[0]))
    with pytest.raises(UserError, match="is a checkpoint of gisting, not of ccm"):
        checkpoints.load(Ccm, lm, tmp_path)
    checkpoints.save(online, tmp_path / "online")
    with pytest.raises(UserError, match="is a checkpoint of gisting_online, not of gisting"):
        checkpoints.load(Gisting, lm, tmp_path / "online")


@torch.no_grad()
def test_before_training_slots_are_the_means_of_the_base_model_s_keys() -> None:
    """A tiny Llama reads a character a token."""
    lm, text = tiny_llama(), FOUR[0]
    whole = torch.stack(prefill(lm, Patch(), torch.tensor([lm.encode(text)])).keys_LBHPD)[
        ..., len(lm.start_ids) :, :
    ]
    slots = keys(Compressive(lm, Compressive.spec.Settings(rank=2, ratio=8)), text)
    assert slots.shape[3] == -(-whole.shape[3] // 8)
    torch.testing.assert_close(slots[..., 1, :], whole[..., 8:16, :].mean(3))
    torch.testing.assert_close(slots[..., -1, :], whole[..., 8 * (slots.shape[3] - 1) :, :].mean(3))


@pytest.mark.parametrize("count", [1, 3, 4, 29, 64])
@torch.no_grad()
def test_a_number_of_slots_does_not_depend_on_the_length_of_a_chunk(count: int) -> None:
    """Before training each slot is the mean of its part of the chunk, whatever the kernel size."""
    lm, ids = tiny_llama(), text(count)
    whole = torch.stack(prefill(lm, Patch(), torch.tensor([ids])).keys_LBHPD)
    parts = whole[..., len(lm.start_ids) :, :].tensor_split(
        [count * slot // 4 for slot in (1, 2, 3)], dim=3
    )
    means = torch.stack([part.mean(3) for part in parts if part.shape[3]], 3)
    method = Compressive(lm, Compressive.spec.Settings(rank=2, ratio=5, slots=4))
    torch.testing.assert_close(streamed(method, ids).tensors["keys"], means)


# a stream

SMALL: dict[str, Any] = {"comp_tokens": 2, "window": 20, "piece": 8, "memory": 4}


def text(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 90, (count,), generator=generator).tolist()


def streamed(method: Ccm, *pieces: list[int]) -> State:
    observes = [[Chunk(text=".", joiner="", ids=tuple(piece))] for piece in pieces]
    return method.adapt(method.begin(1), observes)


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("compress", [True, False])
def test_a_block_is_read_as_token_by_token(base: Callable[[], LM], compress: bool) -> None:
    method, ids = ccm(base(), **SMALL, compress=compress), text(53)
    whole, single = streamed(method, ids), streamed(method, *([token] for token in ids))
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(single.tensors[name], tensor, atol=1e-4, rtol=1e-4)
    assert whole.meta == single.meta


def test_the_papers_lengths() -> None:
    """Figure 8: a window of 160, 64 tokens to 2, a memory of 8."""
    stream, kept, done, lengths = ccm(tiny_llama(), comp_tokens=2, window=160).stream, None, 0, [0]
    assert stream is not None
    for token in text(600):
        kept, done = stream.read(kept, [token], done)
        assert kept is not None
        lengths.append(kept.index.shape[-1])
    assert (max(lengths), min(lengths[409:])) == (160, 97)
    assert lengths[409 : 409 + 128] == [*range(97, 161)] * 2


@pytest.mark.parametrize("n_sink", [None, 0, 3])
def test_without_compressing_the_first_and_the_newest_stay(n_sink: int | None) -> None:
    ids, first = text(100), 1 if n_sink is None else n_sink
    places = (
        streamed(ccm(tiny_llama(), **SMALL, compress=False, n_sink=n_sink), ids)
        .tensors["index"]
        .flatten()
    )
    places = places[places >= 0].tolist()
    assert places == [*range(first), *range(101 + first - len(places), 101)], (
        "behind what begins the text"
    )
