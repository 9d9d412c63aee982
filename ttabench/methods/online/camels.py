"""CaMeLS: online finetuning where a small LM, meta-learned, says what each token weighs.

Hu et al., arXiv 2305.15076.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, kl_div, softplus

from ttabench.core.types import Episode, Observe
from ttabench.lm.forward.patching import forward, weights_as
from ttabench.lm.forward.tokens import pad, piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.scoring import Item, nll, target_logprobs
from ttabench.methods.online import CAMELS, HEAD, CamelsSettings, OnlineSettings
from ttabench.methods.online.method import Online, weighted_loss
from ttabench.methods.parts.lora import shaped
from ttabench.methods.trainable import Trainable, training_item

WRITTEN = 16
"""Texts of the base's own, one of which each episode is held to."""


class Camels(Online[CamelsSettings], Trainable[CamelsSettings]):
    """Context-aware meta-learned loss scaling."""

    spec = CAMELS

    def __init__(self, lm: LM, settings: CamelsSettings) -> None:
        super().__init__(lm, settings)
        self.weigher = TokenWeights(lm, settings.seed).to(lm.device).eval()
        self._texts: list[list[int]] = []

    def modules(self) -> nn.ModuleDict:
        """The decoder that reads documents, and its head."""
        return nn.ModuleDict(dict(self.weigher.named_children()))

    @torch.no_grad()
    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # the methods' arguments
        """Token weights of the small LM."""
        return self._weighed([list(ids)])[0]

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Loss of the answers after the documents of each episode, and how far the base moved elsewhere; means. Each
        episode begins from the base's own weights."""
        s, lm, start = self.settings, self.lm, shaped(self._trained.start(), self._trained.layout)
        self._texts = self._texts or written_texts(lm, WRITTEN, s.kl_tokens, s.seed)
        answer, locality = [], []
        for episode in episodes:
            pieces = episode.observes()
            rows = [piece_ids(lm, piece, first=True)[: s.max_tokens] for piece in pieces]
            weights = self._weighed(rows)
            before = {name: part.detach().requires_grad_() for name, part in start.items()}
            steps = [[document] for document in zip(rows, weights, strict=True) if len(document[0]) > 1]
            after, _ = stepped(lm, before, steps, s, s.inner_lr)
            items = [training_item(lm, ask) for ask in episode.asks()]
            answer.append(answers_loss(lm, after, items))
            elsewhere = self._texts[sum(map(ord, str(episode.key))) % WRITTEN]  # the same for the same episode
            locality.append(s.kl_weight * moved(lm, before, after, elsewhere).mean())
        return {"answer": torch.stack(answer).mean(), "locality": torch.stack(locality).mean()}

    def accumulate_gradients(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """As `Trainable` does, episode by episode: the graph of one holds all weights after each of its documents."""
        return self._means(episodes, learning=True)

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The training loss and its parts; its gradient steps are taken here, too."""
        return {name: float(mean) for name, mean in self._means(episodes).items()}

    def _means(self, episodes: Sequence[Episode], *, learning: bool = False) -> dict[str, Tensor]:
        """Of the parts of the loss, and of their sum "loss"; `learning`: whether its gradient is added, too."""
        means = defaultdict[str, Tensor](lambda: torch.zeros((), device=self.lm.device))
        for episode in episodes:
            with sdpa_kernel(SDPBackend.MATH):  # on the way back, too, where layers are computed again
                parts = {name: part / len(episodes) for name, part in self.loss_parts([episode]).items()}
                loss = torch.stack(list(parts.values())).sum()
                if learning:
                    loss.backward()  # type: ignore[no-untyped-call]
            for name, part in {**parts, "loss": loss}.items():
                means[name] += part.detach()
        return dict(means)

    def _weighed(self, rows: list[list[int]]) -> list[Tensor]:
        """Weights of the tokens of each row, differentiable; what begins a text is read, too."""
        lm, begin = self.lm, list(self.lm.bos_ids)
        ids_BT, mask_BT = (part.to(lm.device) for part in pad([begin + row for row in rows], lm.pad_id, "right"))
        weights_BT = self.weigher(ids_BT, mask_BT)
        return [weights_T[len(begin) : len(begin) + len(row)] for weights_T, row in zip(weights_BT, rows, strict=True)]


BETA = 3.0


class TokenWeights(nn.Module):
    """A copy of the decoder of an LM, and a head that makes one number of each of its states."""

    def __init__(self, lm: LM, seed: int = 0) -> None:
        super().__init__()
        self.decoder = deepcopy(lm.decoder).float().requires_grad_(True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.lift, self.mix = nn.Linear(lm.hidden_size, HEAD), nn.Linear(HEAD, 1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Weights [B, T] of these tokens, 0 where padded; padding stands behind the text, which never sees it."""
        hidden_BTC = self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
        weights_BT = softplus(self.mix(gelu(self.lift(hidden_BTC)))[..., 0], beta=BETA)
        return weights_BT if mask_BT is None else weights_BT * mask_BT


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
    return ids_BT.tolist()


Document = tuple[list[int], Tensor]
"""Token ids, and their weights [T]."""
Parts = Mapping[str, Tensor]


def stepped(
    lm: LM, parts: Parts, steps: Sequence[Sequence[Document]], settings: OnlineSettings, rate: float
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Weights after a plain gradient step on each batch of documents, and the losses before each; differentiable."""
    now, losses = dict(parts), []
    for documents in steps:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), weights_as(lm, now):
            logprobs = target_logprobs(lm, Patch(), [([], ids) for ids, _ in documents])
            weighed = zip(logprobs, documents, strict=True)
            loss = torch.stack([weighted_loss(settings, values, weights) for values, (_, weights) in weighed]).mean()
        slopes = torch.autograd.grad(loss, list(now.values()), create_graph=True)
        now = {name: part - rate * slope for (name, part), slope in zip(now.items(), slopes, strict=True)}
        losses.append(loss)
    return now, losses


def answers_loss(lm: LM, parts: Parts, items: Sequence[Item]) -> Tensor:
    """Mean negative log-likelihood of the target tokens under these weights."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), weights_as(lm, parts):
        summed, count = nll(lm, Patch(), items)
    return summed / count


def moved(lm: LM, before: Parts, after: Parts, ids: Sequence[int]) -> Tensor:
    """KL(before || after) of the next token after each token of a text, [T]; differentiable in `after`."""
    ids_BT = torch.tensor([list(ids)], device=lm.device)
    with torch.no_grad(), weights_as(lm, before):
        held_TV = _logprobs(lm, ids_BT)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), weights_as(lm, after):
        now_TV = _logprobs(lm, ids_BT)
    return kl_div(now_TV, held_TV, log_target=True, reduction="none").sum(-1)


def _logprobs(lm: LM, ids_BT: Tensor) -> Tensor:
    logits_BTV, _ = forward(lm, Patch(), ids_BT)
    return logits_BTV[0].float().log_softmax(-1)
