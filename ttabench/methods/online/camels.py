"""CaMeLS: online finetuning with token weights from a small meta-learned LM.

The small LM weights each token of the finetuning loss. Meta-training backpropagates through the
finetuning steps of an episode. A locality loss keeps the finetuned model close to the base model.

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

from ttabench.core.types import Chunk, Episode
from ttabench.lm.forward.patching import forward, weights_replaced
from ttabench.lm.forward.tokens import chunk_ids, pad
from ttabench.lm.inference.scoring import ScoringItem, answer_nll, target_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.online import CAMELS, HEAD_HIDDEN_SIZE, CamelsSettings, OnlineSettings
from ttabench.methods.online.method import OnlineFinetuning, weighted_loss
from ttabench.methods.parts.lora import split_vector
from ttabench.methods.trainable import Trainable, training_item

N_LOCALITY_TEXTS = 16
"""Number of texts sampled from the base model. The locality loss of an episode uses one of them."""


class Camels(OnlineFinetuning[CamelsSettings], Trainable[CamelsSettings]):
    """Context-aware meta-learned loss scaling (CaMeLS)."""

    spec = CAMELS

    def __init__(self, lm: LM, settings: CamelsSettings) -> None:
        super().__init__(lm, settings)
        self.weight_network = TokenWeightNetwork(lm, settings.seed).to(lm.device).eval()
        self._texts: list[list[int]] = []

    def modules(self) -> nn.ModuleDict:
        """Return the trained modules of the weight network: decoder and head."""
        return nn.ModuleDict(dict(self.weight_network.named_children()))

    @torch.no_grad()
    def token_weights(self, document: Chunk, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # interface
        """Return the weights [T] of the tokens of a document."""
        return self._compute_weights([list(ids)])[0]

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean answer loss after each episode's documents, and the locality loss.

        Each episode starts from the base model's weights.
        """
        s = self.settings
        lm = self.lm
        initial_weights = split_vector(self._weights.start(), self._weights.layout)
        self._texts = self._texts or sample_texts(lm, N_LOCALITY_TEXTS, s.kl_tokens, s.seed)
        answer, locality = [], []
        for episode in episodes:
            documents = episode.chunks()
            document_ids = [
                chunk_ids(lm, document, first=True)[: s.max_tokens] for document in documents
            ]
            token_weights = self._compute_weights(document_ids)
            before = {
                name: tensor.detach().requires_grad_() for name, tensor in initial_weights.items()
            }
            steps = [
                [document]
                for document in zip(document_ids, token_weights, strict=True)
                if len(document[0]) > 1
            ]
            after, _ = unroll_steps(lm, before, steps, s, s.inner_lr)
            items = [training_item(lm, query) for query in episode.queries()]
            answer.append(target_loss(lm, after, items))
            # the same text for an episode every time
            locality_text = self._texts[sum(map(ord, str(episode.key))) % N_LOCALITY_TEXTS]
            locality.append(s.kl_weight * next_token_kl(lm, before, after, locality_text).mean())
        return {"answer": torch.stack(answer).mean(), "locality": torch.stack(locality).mean()}

    def accumulate_gradients(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Accumulate gradients episode by episode.

        The graph of an episode holds a copy of the weights per document, so one graph is in memory
        at a time.
        """
        return self._mean_losses(episodes, accumulates_gradients=True)

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the training loss and its parts. Needs gradients, for the finetuning steps."""
        return {name: float(mean) for name, mean in self._mean_losses(episodes).items()}

    def _mean_losses(
        self, episodes: Sequence[Episode], *, accumulates_gradients: bool = False
    ) -> dict[str, Tensor]:
        """Return the means of the loss parts and of their sum, "loss".

        `accumulates_gradients`: True to backpropagate.
        """
        means = defaultdict[str, Tensor](lambda: torch.zeros((), device=self.lm.device))
        for episode in episodes:
            with sdpa_kernel(SDPBackend.MATH):  # also for recomputed layers in the backward pass
                parts = {
                    name: part / len(episodes) for name, part in self.loss_parts([episode]).items()
                }
                loss = torch.stack(list(parts.values())).sum()
                if accumulates_gradients:
                    loss.backward()  # type: ignore[no-untyped-call]
            for name, part in {**parts, "loss": loss}.items():
                means[name] += part.detach()
        return dict(means)

    def _compute_weights(self, rows: list[list[int]]) -> list[Tensor]:
        """Return token weights of each row, differentiable.

        The network also reads BOS, but its weight is not returned.
        """
        lm, bos_ids = self.lm, list(self.lm.bos_ids)
        ids_BT, _ = pad([bos_ids + row for row in rows], lm.pad_id, "right", lm.device)
        weights_BT = self.weight_network(ids_BT)
        return [
            weights_T[len(bos_ids) : len(bos_ids) + len(row)]
            for weights_T, row in zip(weights_BT, rows, strict=True)
        ]


SOFTPLUS_BETA = 3.0


class TokenWeightNetwork(nn.Module):
    """Copy of an LM's decoder, with a head that maps each hidden state to a token weight."""

    def __init__(self, lm: LM, seed: int = 0) -> None:
        super().__init__()
        self.decoder = deepcopy(lm.decoder).float().requires_grad_(True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.lift = nn.Linear(lm.hidden_size, HEAD_HIDDEN_SIZE)
            self.mix = nn.Linear(HEAD_HIDDEN_SIZE, 1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return token weights [B, T]. Padding must be on the right; its weights mean nothing."""
        # causal attention never sees padding on the right, so the decoder needs no mask
        hidden_BTC = self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
        return softplus(self.mix(gelu(self.lift(hidden_BTC)))[..., 0], beta=SOFTPLUS_BETA)


@torch.no_grad()
def sample_texts(lm: LM, count: int, tokens: int, seed: int) -> list[list[int]]:
    """Sample token ids of texts from the base model, for the locality loss.

    `tokens`: length of each text, including the start tokens.
    """
    generator = torch.Generator(lm.device).manual_seed(seed)
    first = list(lm.bos_ids) or [lm.eos_id]
    ids_BT = torch.tensor([first] * count, device=lm.device)
    while ids_BT.shape[1] < tokens:
        logits_BV = lm.logits(
            lm.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state[:, -1]
        )
        next_B1 = torch.multinomial(logits_BV.float().softmax(-1), 1, generator=generator)
        ids_BT = torch.cat([ids_BT, next_B1], dim=1)
    return ids_BT.tolist()


WeightedDocument = tuple[list[int], Tensor]
"""Token ids, and their weights [T]."""
NamedWeights = Mapping[str, Tensor]


def unroll_steps(
    lm: LM,
    parts: NamedWeights,
    steps: Sequence[Sequence[WeightedDocument]],
    settings: OnlineSettings,
    rate: float,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Take SGD steps, one per batch of documents, and keep them differentiable.

    `rate`: learning rate. Returns the weights after all steps, and the loss before each step.
    """
    weights_now, losses = dict(parts), []
    for documents in steps:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), weights_replaced(lm, weights_now):
            logprobs = target_logprobs(lm, Patch(), [([], ids) for ids, _ in documents])
            losses_and_weights = zip(logprobs, documents, strict=True)
            loss = torch.stack(
                [
                    weighted_loss(settings, values, weights)
                    for values, (_, weights) in losses_and_weights
                ]
            ).mean()
        gradients = torch.autograd.grad(loss, list(weights_now.values()), create_graph=True)
        weights_now = {
            name: part - rate * gradient
            for (name, part), gradient in zip(weights_now.items(), gradients, strict=True)
        }
        losses.append(loss)
    return weights_now, losses


def target_loss(lm: LM, parts: NamedWeights, items: Sequence[ScoringItem]) -> Tensor:
    """Return the mean NLL of the target tokens under these weights."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), weights_replaced(lm, parts):
        summed, count = answer_nll(lm, Patch(), items)
    return summed / count


def next_token_kl(lm: LM, before: NamedWeights, after: NamedWeights, ids: Sequence[int]) -> Tensor:
    """Return KL(before || after) of the next-token distributions at each token, in nats, [T].

    Differentiable in `after`.
    """
    ids_BT = torch.tensor([list(ids)], device=lm.device)
    with torch.no_grad(), weights_replaced(lm, before):
        before_TV = _logprobs(lm, ids_BT)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), weights_replaced(lm, after):
        after_TV = _logprobs(lm, ids_BT)
    return kl_div(after_TV, before_TV, log_target=True, reduction="none").sum(-1)


def _logprobs(lm: LM, ids_BT: Tensor) -> Tensor:
    logits_BTV, _ = forward(lm, Patch(), ids_BT)
    return logits_BTV[0].float().log_softmax(-1)
