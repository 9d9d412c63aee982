"""`AdaptedLM`: a method on a base model, as lm-eval knows models.

    AdaptedLM(method).loglikelihood(requests)     demonstrations read once, every continuation scored behind them

Under `icl` the log-likelihoods are those of lm-eval's own `--model hf`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.harness import arguments
from ttabench.harness.prompts import Prompts, Reading, own
from ttabench.harness.splitting import pieces, seam
from ttabench.lm.batching import AUTO, BatchSize, in_batches
from ttabench.lm.generation import generate
from ttabench.lm.patch import Patch, State
from ttabench.lm.scoring import Question, Scored, score_options
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session

MAX_GENERATED = 256
"""New tokens where neither the task nor the command line says how many, as in lm-eval."""

log = logging.getLogger(__name__)
Done = TypeVar("Done")


@register_model(arguments.NAME)
class AdaptedLM(TemplateLM):  # type: ignore[misc]  # lm-eval is not typed
    """A method on a base model, as lm-eval knows models.

    Args:
        method: on its base model.
        start: state of one row that every reading starts from; an empty one by default.
        batch_size: queries at once, fewer where they do not fit into memory; `batching.AUTO` for as many as fit.
        prompts: how prompts are cut.
        info: what lm-eval's results file says about the model.
    """

    def __init__(
        self,
        method: BaseMethod[Any],
        *,
        start: State | None = None,
        batch_size: int = 32,
        prompts: Prompts | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.method, self.lm = method, method.lm
        self.batch_size = "auto" if batch_size == AUTO else batch_size
        """Queries at once, as asked for; lm-eval's results file has it beside `batch_sizes`."""
        self.size = BatchSize(batch_size, method.lm.device.type)
        self.tokenizer = self.lm.tokenizer
        self.prompts = prompts or Prompts()
        self.readings = 0
        """Prefixes read so far."""
        self._start = start if start is not None else method.begin(1)
        self._info = dict(info or {})
        self._templated: set[str] = set()
        self._in_window = self._keeps_text_in_the_window()

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> AdaptedLM:
        """From `method=icl,model=nano`, as lm-eval's `--model_args` has it."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> AdaptedLM:
        """From model arguments, and what lm-eval adds of its own (batch size, device).

        Raises:
            UserError: an unknown argument, method, model, setting ...
        """
        return cls(**arguments.parts(arg_dict, additional_config or {}))

    # what lm-eval asks of a model

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.lm.eos_id

    @property
    def tokenizer_name(self) -> str:
        """Stands in the results."""
        return self.lm.tokenizer_name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; BOS is added where a text is scored, never here."""
        assert not add_special_tokens, "BOS is put where the window starts"
        return self.lm.encode(string)

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Queries that go together by now: those asked for, or fewer where they did not fit into memory."""
        return {0: self.size.rows}

    def get_model_info(self) -> dict[str, Any]:
        """Base model, method, settings, checkpoint and state, for lm-eval's results file."""
        return self._info

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns of a dialogue as the base model's tokenizer writes them."""
        text = self.lm.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        assert isinstance(text, str)
        self._templated.add(text)
        return text

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, for lm-eval's results file; None where none is used."""
        found = self.lm.tokenizer.chat_template if chat_template else None
        return None if found is None else str(found)

    @torch.no_grad()
    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:  # noqa: ARG002
        """(summed log-likelihood, whether greedy decoding would write it) of every continuation, in their order."""
        results: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for reading in self._readings(requests, stripped=True):
            contexts = [requests[index].args[0] for index in reading.indices]
            pairs = reading.pairs(contexts, [requests[index].args[1] for index in reading.indices])
            places: dict[tuple[int, ...], list[int]] = {}
            for place, (prompt, _) in enumerate(pairs):
                places.setdefault(tuple(prompt), []).append(place)
            questions = [(list(prompt), [pairs[place][1] for place in group]) for prompt, group in places.items()]
            texts = [contexts[group[0]][reading.cut :] for group in places.values()]
            for group, scored in zip(places.values(), self._score(reading.state, questions, texts), strict=True):
                for place, each in zip(group, scored, strict=True):
                    results[reading.indices[place]] = (float(each.logprobs.sum()), each.greedy)
        return results

    @torch.no_grad()
    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002
        """Log-likelihood of whole texts, in disjoint windows; nothing is read before or between them."""
        room = self.lm.max_positions - len(self.lm.bos_ids)
        questions, owners = [], []
        for owner, request in enumerate(requests):
            # A BOS that the tokenizer adds is a token of the text, scored as lm-eval scores it.
            ids = [*self.lm.bos_ids, *self.lm.encode(request.args[0])]
            for number, pair in enumerate(get_rolling_token_windows(ids, self.lm.eos_id, room, 1)):
                context, target = make_disjoint_window(pair)
                questions.append((context if number else self._nothing(), [target]))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (scored,) in zip(owners, self._score(self._start, questions, [""] * len(questions)), strict=True):
            totals[owner] += float(scored.logprobs.sum())
        return totals

    @torch.no_grad()
    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """Text after every prompt, cut at its stop strings; greedy, or a beam search (`num_beams`)."""
        results = [""] * len(requests)
        for reading in self._readings(requests, stripped=False):
            alike: dict[tuple[int, int], list[int]] = {}
            stops = {}
            for index in reading.indices:
                count, beams, stops[index] = _decoding(requests[index].args[1])
                alike.setdefault((count, beams), []).append(index)
            for (count, beams), indices in alike.items():
                contexts = [requests[index].args[0] for index in indices]
                prompts = reading.prompts(contexts)
                asks = [_ask(context[reading.cut :], i) for i, context in enumerate(contexts)]
                written = self._written(reading.state, prompts, asks, (count, beams))
                for index, row in zip(indices, written, strict=True):
                    results[index] = postprocess_generated_text(self.lm.decode(row), stops[index], None)
        return results

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("log-likelihoods are scored by prefix, see `loglikelihood`")

    # reading

    def _readings(self, requests: Sequence[Any], *, stripped: bool) -> Iterable[Reading]:
        """The requests by task and prefix, each prefix read just before it is needed; one state lives at a time."""
        by_task: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            by_task.setdefault(request.task_name or "", []).append(index)
        for task, indices in by_task.items():
            cuts = self.prompts.cuts(task, [requests[index] for index in indices])
            prefixes: dict[str, list[int]] = {}
            for index, cut in zip(indices, cuts, strict=True):
                prefixes.setdefault(requests[index].args[0][:cut], []).append(index)
            templated = {requests[index].args[0] in self._templated for index in indices if requests[index].args[0]}
            assert len(templated) < 2, f"a chat template wrote some prompts of {task}, not all"
            if len(set(prefixes) - {""}) > 1:
                log.warning(
                    "%s: its documents have %d different contexts, each of which is read. "
                    "`fewshot_config: {sampler: first_n}` gives all of them the same demonstrations.",
                    task,
                    len(set(prefixes) - {""}),
                )
            for prefix, members in prefixes.items():
                contexts = list(dict.fromkeys(requests[index].args[0] for index in members))
                reading = Reading(self.lm, self._start, members, nothing=self._nothing(), templated=templated == {True})
                texts = [each.rstrip() for each in contexts] if stripped else contexts
                yield self._read(prefix, reading, texts) if prefix else reading

    def _read(self, prefix: str, reading: Reading, contexts: list[str]) -> Reading:
        self.readings += 1
        if self._in_window:

            def encode(texts: Sequence[str], follows: bool) -> list[list[int]]:
                rows = self.lm.encode_many(texts, follows=follows, specials=reading.templated)
                return rows if follows or not reading.templated else [own(self.lm, row) for row in rows]

            found = seam(encode, prefix, self.prompts.delimiter, contexts)
            state, skip = self._adapted(found.pieces), len(found.anchor_ids)
            return replace(reading, state=state, cut=found.read, anchor=found.anchor, skip=skip, nothing=[])
        state = self._adapted(pieces(prefix, self.prompts.delimiter))
        return replace(reading, state=state, cut=len(prefix), anchor=len(prefix))

    def _adapted(self, context: Sequence[Observe]) -> State:
        session = Session(self.lm, self.method, self._start)
        session.read(context)
        return session.state

    def _nothing(self) -> list[int]:
        """What an empty prompt is conditioned on: the BOS that scoring adds, else the tokenizer's BOS, else its EOS."""
        bos = self.lm.tokenizer.bos_token_id
        return [] if self.lm.bos_ids else [self.lm.eos_id if bos is None else int(bos)]

    @torch.no_grad()
    def _keeps_text_in_the_window(self) -> bool:
        """Whether a query goes on where the context ended (full context), or begins a text of its own (MAC)."""
        session = Session(self.lm, self.method, self._start)
        session.read([Observe(text="A text.", key="probe")])
        prefix = session.patch([_ask("A query", 0)]).prefix
        return prefix is not None and prefix.holds_bos

    # asking

    def _score(self, state: State, questions: Sequence[Question], texts: Sequence[str]) -> list[list[Scored]]:
        def score(patch: Patch, chosen: list[int]) -> list[list[Scored]]:
            return score_options(self.lm, patch, [questions[i] for i in chosen], len(chosen))

        lengths = [len(prompt) + sum(map(len, options)) for prompt, options in questions]
        return self._in_batches(state, [_ask(text, index) for index, text in enumerate(texts)], lengths, score)

    def _written(
        self, state: State, prompts: Sequence[list[int]], asks: Sequence[Ask], search: tuple[int, int]
    ) -> list[list[int]]:
        """Tokens after every prompt; `search` says how many at most, and beams."""

        def write(patch: Patch, chosen: list[int]) -> list[list[int]]:
            some, (count, beams) = [prompts[i] for i in chosen], search
            return generate(self.lm, patch, some, max_new_tokens=count, num_beams=beams, batch_size=len(some))

        return self._in_batches(state, asks, [len(prompt) for prompt in prompts], write)

    def _in_batches(
        self, state: State, asks: Sequence[Ask], lengths: Sequence[int], work: Callable[[Patch, list[int]], list[Done]]
    ) -> list[Done]:
        """What the work makes of every query, the longest ones first; all share one patch where it is the same."""
        if not asks:
            return []
        session = Session(self.lm, self.method, state)

        def run(chosen: list[int]) -> list[tuple[int, Done]]:
            patch = session.patch([asks[i] for i in chosen])
            return list(zip(chosen, work(patch, chosen), strict=True))

        order = sorted(range(len(asks)), key=lambda i: -lengths[i])
        found = dict(pair for batch in in_batches(order, self.size, run) for pair in batch)
        return [found[index] for index in range(len(asks))]


def _ask(prompt: str, index: int) -> Ask:
    return Ask(prompt=prompt, key=str(index))


def _decoding(arguments: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """(new tokens, beams, stop strings) of lm-eval's generation arguments."""
    found = normalize_gen_kwargs(dict(arguments), MAX_GENERATED)
    if found.get("do_sample"):
        raise UserError("do_sample=true asks for sampling.", "Decode greedily, or with num_beams.")
    stops = found.get("until") or []
    return int(found["max_gen_toks"]), int(found.get("num_beams", 1)), [stops] if isinstance(stops, str) else stops
