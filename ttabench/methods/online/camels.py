"""CaMeLS: online finetuning where a small LM, meta-learned, says what each token weighs.

Hu et al., arXiv 2305.15076.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, kl_div, softplus

from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Observe
from ttabench.lm.forward.head import second_order
from ttabench.lm.forward.patching import forward
from ttabench.lm.forward.tokens import pad, piece_ids
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.scoring import Item, nll, target_logprobs
from ttabench.methods.online import CAMELS, HEAD, CamelsSettings, OnlineSettings
from ttabench.methods.online.method import Online, weighted_loss
from ttabench.methods.parts.trained import Factors, Weights, shaped
from ttabench.methods.trainable import Trainable, training_item

WRITTEN = 16
"""Texts of the base's own, one of which each episode is held to."""


class Camels(Online[CamelsSettings], Trainable[CamelsSettings]):
    """Context-aware meta-learned loss scaling."""

    spec = CAMELS

    def __init__(self, lm: LM, settings: CamelsSettings) -> None:
        super().__init__(lm, settings)
        self.weigher = TokenWeights(proxy_of(lm, settings.proxy), settings.seed).to(lm.device).eval()
        self._texts: list[list[int]] = []
        self._start: Tensor | None = None
        self._since = 0

    @classmethod
    def serves_other_bases(cls, settings: CamelsSettings) -> bool:
        """A checkpoint whose decoder is that of a proxy weighs tokens for any base of its tokenizer."""
        return bool(settings.proxy)

    def modules(self) -> nn.ModuleDict:
        """The decoder that reads documents, and its head."""
        return nn.ModuleDict(dict(self.weigher.named_children()))

    @torch.no_grad()
    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # the methods' arguments
        """Token weights of the small LM."""
        return self._weighed([list(ids)])[0]

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Loss of the answers after the documents of each episode, and how far the base moved elsewhere; means."""
        return self._meta(episodes, self._begun())[0]

    def accumulate_gradients(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """As `Trainable` does, episode by episode: each begins where the one before it left the base, until
        `reset_every` documents were read."""
        means: dict[str, Tensor] = {}
        for episode in episodes:
            losses, after = self._meta([episode], self._begun())
            (torch.stack(list(losses.values())).sum() / len(episodes)).backward()  # type: ignore[no-untyped-call]
            self._since += len(episode.observes())
            moved_N = torch.cat([part.detach().flatten() for part in after.values()])
            self._start = None if self._since >= self.settings.reset_every else moved_N
            self._since = 0 if self._start is None else self._since
            for name, loss in losses.items():
                means[name] = means.get(name, torch.zeros(())) + loss.detach().cpu() / len(episodes)
        return {**means, "loss": torch.stack(list(means.values())).sum()}

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The training loss from the base as it is; "uniform" is the answers' with every token alike."""
        fresh = self._trained.start()
        losses = self._meta(episodes, fresh)[0]
        plain = self._meta(episodes, fresh, uniform=True)[0]
        return {
            "loss": float(torch.stack(list(losses.values())).detach().sum()),
            "uniform": float(plain["answer"].detach()),
        }

    def training_state(self) -> dict[str, Tensor]:
        """Where the next episode begins, and the documents read since the base's own weights."""
        since = {"since": torch.tensor(self._since)}
        return since if self._start is None else {**since, "start": self._start.clone()}

    def load_training_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._since = int(tensors["since"]) if "since" in tensors else 0
        self._start = tensors["start"].clone() if "start" in tensors else None

    def _begun(self) -> Tensor:
        return self._trained.start() if self._start is None else self._start

    def _meta(
        self, episodes: Sequence[Episode], start_N: Tensor, *, uniform: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Mean losses of the episodes, each from `start_N`, and the parts after the last one."""
        s, lm, trained = self.settings, self.lm, self._trained
        answer, locality = [], []
        after: dict[str, Tensor] = {}
        for episode in episodes:
            pieces = episode.observes()
            rows = [piece_ids(lm, piece, first=True)[: s.max_tokens] for piece in pieces]
            weights = [torch.ones(len(row), device=lm.device) for row in rows] if uniform else self._weighed(rows)
            before = {name: part.detach().requires_grad_() for name, part in shaped(start_N, trained.layout).items()}
            steps = [[document] for document in zip(rows, weights, strict=True) if len(document[0]) > 1]
            after, _ = stepped(lm, trained, before, steps, s, s.inner_lr, first_order=s.first_order)
            items = [training_item(lm, ask) for ask in episode.asks()]
            answer.append(answers_loss(lm, trained, after, items))
            text = self._locality(episode)
            locality.append(s.kl_weight * moved(lm, trained, before, after, text).mean())
        return {"answer": torch.stack(answer).mean(), "locality": torch.stack(locality).mean()}, after

    def _weighed(self, rows: list[list[int]]) -> list[Tensor]:
        """Weights of the tokens of each row, differentiable; the proxy reads what begins a text, too."""
        begin = list(self.lm.bos_ids)
        ids_BT, mask_BT = (
            padded.to(self.lm.device) for padded in pad([begin + row for row in rows], self.lm.pad_id, "right")
        )
        weights_BT: Tensor = self.weigher(ids_BT, mask_BT)
        return [weights_T[len(begin) : len(begin) + len(row)] for weights_T, row in zip(weights_BT, rows, strict=True)]

    def _locality(self, episode: Episode) -> list[int]:
        """One of the base's own texts, the same for the same episode."""
        if not self._texts:
            self._texts = written_texts(self.lm, WRITTEN, self.settings.kl_tokens, self.settings.seed)
        return self._texts[sum(map(ord, str(episode.key))) % WRITTEN]


BETA = 3.0


class TokenWeights(nn.Module):
    """The decoder of a small LM, and a head that makes one number of each of its states."""

    def __init__(self, proxy: LM, seed: int = 0) -> None:
        super().__init__()
        self.decoder = deepcopy(proxy.decoder).float().requires_grad_(True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.lift, self.mix = nn.Linear(proxy.hidden_size, HEAD), nn.Linear(HEAD, 1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Weights [B, T] of these tokens, 0 where padded; padding stands behind the text, which never sees it."""
        hidden_BTC: Tensor = self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
        weights_BT = softplus(self.mix(gelu(self.lift(hidden_BTC)))[..., 0], beta=BETA)
        return weights_BT if mask_BT is None else weights_BT * mask_BT


def proxy_of(lm: LM, name: str) -> LM:
    """The LM whose decoder weighs the tokens that a base model reads."""
    if not name or name == lm.name:
        return lm
    proxy = load(name, device=str(lm.device), dtype="float32")
    if proxy.tokenizer.get_vocab() != lm.tokenizer.get_vocab() or proxy.start_ids != lm.bos_ids:
        fault = f"The proxy {name} has another tokenizer than {lm.name}, whose tokens it is to weigh."
        raise UserError(fault, "Give --set proxy=NAME of a small model of the same tokenizer.")
    return proxy


@torch.no_grad()
def written_texts(lm: LM, count: int, tokens: int, seed: int) -> list[list[int]]:
    """Token ids of texts that the base model itself writes, drawn from the seed: texts of no document. `tokens`: of
    each, what begins it included."""
    draw = torch.Generator(lm.device).manual_seed(seed)
    first = list(lm.bos_ids) or [lm.eos_id]
    ids_BT = torch.tensor([first] * count, device=lm.device)
    while ids_BT.shape[1] < tokens:
        logits_BV = lm.logits(lm.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state[:, -1])
        next_B1 = torch.multinomial(logits_BV.float().softmax(-1), 1, generator=draw)
        ids_BT = torch.cat([ids_BT, next_B1], dim=1)
    rows: list[list[int]] = ids_BT.tolist()
    return rows


Document = tuple[list[int], Tensor]
"""Token ids, and their weights [T]."""
Parts = Mapping[str, Tensor]


def stepped(
    lm: LM,
    trained: Weights | Factors,
    parts: Parts,
    steps: Sequence[Sequence[Document]],
    settings: OnlineSettings,
    rate: float,
    *,
    first_order: bool = False,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The parts after a plain gradient step on each batch of documents, differentiable; and the losses before each.

    `first_order`: gradients do not depend on the steps before, only on the weights of tokens.
    """
    now, losses = dict(parts), []
    for documents in steps:
        at = {name: part.detach().requires_grad_() for name, part in now.items()} if first_order else now
        with torch.enable_grad(), second_order(), trained.in_place(at) as patch:
            logprobs = target_logprobs(lm, patch, [([], ids) for ids, _ in documents])
            weighed = zip(logprobs, documents, strict=True)
            loss = torch.stack([weighted_loss(settings, values, weights) for values, (_, weights) in weighed]).mean()
        slopes = torch.autograd.grad(loss, list(at.values()), create_graph=True)
        now = {name: part - rate * slope for (name, part), slope in zip(now.items(), slopes, strict=True)}
        losses.append(loss)
    return now, losses


def answers_loss(lm: LM, trained: Weights | Factors, parts: Parts, items: Sequence[Item]) -> Tensor:
    """Mean negative log-likelihood of the target tokens under these parts."""
    with torch.enable_grad(), second_order(), trained.in_place(parts) as patch:
        summed, count = nll(lm, patch, items)
    return summed / count


def moved(lm: LM, trained: Weights | Factors, before: Parts, after: Parts, ids: Sequence[int]) -> Tensor:
    """KL(before || after) of the next token after each token of a text, [T]; differentiable in `after`."""
    ids_BT = torch.tensor([list(ids)], device=lm.device)
    with torch.no_grad(), trained.in_place(before) as patch:
        held_TV = _logprobs(lm, patch, ids_BT)
    with torch.enable_grad(), second_order(), trained.in_place(after) as patch:
        now_TV = _logprobs(lm, patch, ids_BT)
    return kl_div(now_TV, held_TV, log_target=True, reduction="none").sum(-1)


def _logprobs(lm: LM, patch: Patch, ids_BT: Tensor) -> Tensor:
    logits_BTV, _ = forward(lm, patch, ids_BT)
    return logits_BTV[0].float().log_softmax(-1)
