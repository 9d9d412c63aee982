"""CaMeLS: online finetuning where a small LM, meta-learned, says what each token weighs.

Hu et al., arXiv 2305.15076.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ttabench.core.types import Episode, Observe
from ttabench.lm.forward.tokens import pad, piece_ids
from ttabench.lm.model import LM
from ttabench.methods.online import CAMELS
from ttabench.methods.online.method import Online
from ttabench.methods.online.settings import CamelsSettings
from ttabench.methods.online.token_weights import TokenWeights, proxy_of, written_texts
from ttabench.methods.online.unrolled import answers_loss, moved, stepped
from ttabench.methods.parts.trained import shaped
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

    def accumulate_gradients(self, episodes: Sequence[Episode], parts: int = 1) -> dict[str, Tensor]:
        """As `Trainable` does, episode by episode: each begins where the one before it left the base, until
        `reset_every` documents were read."""
        del parts  # one episode at a time
        means: dict[str, Tensor] = {}
        for episode in episodes:
            losses, after = self._meta([episode], self._begun())
            (torch.stack(list(losses.values())).sum() / len(episodes)).backward()  # type: ignore[no-untyped-call]
            self._since += len(episode.observes())
            self._start = None if self._since >= self.settings.reset_every else _vector(after)
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


def _vector(parts: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts.values()])
