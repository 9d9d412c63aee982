"""`AdaptedLM`, a method on a base model as a model of lm-eval, with lm-eval's evaluation and CLI.

    AdaptedLM(method).loglikelihood(requests)    reads demonstrations once, scores continuations

With `icl`, log-likelihoods equal those of lm-eval's `--model hf`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeVar

import lm_eval.api.model
import torch
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import simple_parse_args_string

from ttabench.core.architectures import NANO
from ttabench.core.declared import format_setting, option_fields, parse_value
from ttabench.core.environment import use_threads
from ttabench.core.errors import UnknownName, UserError, escape_control_characters
from ttabench.core.types import Query
from ttabench.harness.reading import ContextReader, PromptSplitter, render_template
from ttabench.lm.inference.answering import AUTO_BATCH_SIZE, BatchSize, generate, run_in_batches
from ttabench.lm.inference.scoring import score_options
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.session import Session, needs_single_queries
from ttabench.readers.lm_eval import decoding_limits, lm_eval_errors
from ttabench.records.run_fields import parse_batch_size
from ttabench.run.evaluation import ModelCache
from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_method

NAME = "ttabench"
REQUEST_ARGUMENTS = (
    "method model checkpoint preset task dtype bos max_context base_checkpoint random_weights "
    "device keep keep_tokens"
).split()
"""Request fields that are model arguments of the same name."""
HARNESS_ARGUMENTS = {"batch_size": str, "threads": int | None, "split": str}
DEFAULT_BATCH_SIZE = 32
"""Queries per batch if no batch size is given."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
log = logging.getLogger(__name__)


@register_model(NAME)
class AdaptedLM(lm_eval.api.model.LM):  # type: ignore[misc]  # lm-eval is not typed
    """A method on a base model, as a model of lm-eval.

    `batch_size` is the number of queries per batch, reduced if they do not fit into memory. `info`
    is written to lm-eval's results file.
    """

    def __init__(
        self,
        method: Method[Any],
        *,
        batch_size: int = 32,
        prompts: PromptSplitter | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.method, self.lm = method, method.lm
        self.batch_size = "auto" if batch_size == AUTO_BATCH_SIZE else batch_size
        """Requested queries per batch; lm-eval's results file has it along with `batch_sizes`."""
        rows = 1 if needs_single_queries(method) else batch_size
        self.size = BatchSize(rows, method.lm.device.type)
        self.tokenizer, self.eot_token_id = self.lm.tokenizer, self.lm.eos_id
        self.prompts = prompts or PromptSplitter()
        self.reader = ContextReader(method, self.prompts)
        self._info = dict(info or {})

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> AdaptedLM:
        """Create a model from `method=icl,model=nano`, lm-eval's `--model_args`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> AdaptedLM:
        """Create a model from model arguments.

        lm-eval converts some texts to numbers. `additional_config` has what lm-eval adds (batch
        size, device).
        """
        typed_arguments = {
            key: str(value) for key, value in (additional_config or {}).items() if value is not None
        }
        typed_arguments |= {key: format_setting(value) for key, value in arg_dict.items()}
        typed_arguments.pop("max_batch_size", None)
        harness_values = {
            key: parse_value(typed_arguments.pop(key), kind, key)
            for key, kind in HARNESS_ARGUMENTS.items()
            if key in typed_arguments
        }
        request = _request(
            typed_arguments, harness_values.pop("batch_size", str(DEFAULT_BATCH_SIZE))
        )
        use_threads(harness_values.pop("threads", None))
        prompts, resolved = PromptSplitter(**harness_values), resolve_method(request)
        lm = ModelCache().get(request)
        method = resolved.build(lm)
        if method.spec.trainable and resolved.checkpoint is None:
            log.warning(
                "%s has no checkpoint, so its modules are untrained. Set checkpoint=PATH.",
                request.method,
            )
        info = {
            **resolved.state_identity(lm),
            "model": NAME,
            "base": lm.name,
            "split": prompts.split,
            "threads": torch.get_num_threads(),
        }
        return cls(method, batch_size=request.batch_size, prompts=prompts, info=info)

    # interface of lm-eval

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, for lm-eval's results file."""
        return self.lm.tokenizer_name

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Current queries per batch: the requested number, or fewer if they did not fit into
        memory."""
        return {0: self.size.rows}

    def get_model_info(self) -> dict[str, Any]:
        """Return base model, method, settings, checkpoint and reading counts, for lm-eval's
        results file."""
        return {**self._info, "reading": self.reader.counts}

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Format the turns of a dialogue with the chat template of the tokenizer."""
        return render_template(self.lm, chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the tokenizer's template for lm-eval's results file; `None` if none is used."""
        template = self.lm.tokenizer.chat_template if chat_template else None
        return None if template is None else str(template)

    @torch.no_grad()
    def loglikelihood(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[tuple[float, bool]]:
        """Return (summed log-likelihood, True if greedy decoding yields it) of every
        continuation, in order."""
        results: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for reading in self.reader.read_contexts(requests, stripped=True):
            contexts = [requests[index].args[0] for index in reading.indices]
            pairs = reading.pairs(contexts, [requests[index].args[1] for index in reading.indices])
            groups: dict[tuple[int, ...], list[int]] = {}
            for place, (prompt, _) in enumerate(pairs):
                groups.setdefault(tuple(prompt), []).append(place)
            questions = [
                (list(prompt), [pairs[place][1] for place in group])
                for prompt, group in groups.items()
            ]
            queries = [reading.make_query(group[0], ids) for ids, group in groups.items()]
            lengths = [len(prompt) + sum(map(len, options)) for prompt, options in questions]
            score_batch = partial(score_options, self.lm, batch_size=len(questions))
            answers = self._run_in_batches(reading.state, queries, questions, lengths, score_batch)
            for group, scored in zip(groups.values(), answers, strict=True):
                for place, score in zip(group, scored, strict=True):
                    results[reading.indices[place]] = (float(score.logprobs.sum()), score.greedy)
        return results

    def loglikelihood_rolling(
        self,
        requests: Sequence[Any],  # noqa: ARG002
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[float]:
        """Raise a `UserError`: a whole text has no context that a method could read."""
        raise UserError(
            "This task scores whole texts, so there is no context to read.",
            "Use `ttabench eval --task pg19`.",
        )

    @torch.no_grad()
    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """Generate text greedily for every prompt, cut at its stop strings."""
        results = [""] * len(requests)
        for reading in self.reader.read_contexts(requests, stripped=False):
            prompts = reading.prompts([requests[index].args[0] for index in reading.indices])
            counts, stops = zip(
                *(decoding_limits(requests[index].args[1]) for index in reading.indices),
                strict=True,
            )
            for count in set(counts):
                places = [place for place, limit in enumerate(counts) if limit == count]
                queries = [reading.make_query(place, prompts[place]) for place in places]
                texts = [prompts[place] for place in places]
                lengths = list(map(len, texts))
                write_batch = partial(
                    generate, self.lm, max_new_tokens=count, batch_size=len(texts)
                )
                written = self._run_in_batches(reading.state, queries, texts, lengths, write_batch)
                for place, row in zip(places, written, strict=True):
                    text = postprocess_generated_text(self.lm.decode(row), stops[place], None)
                    results[reading.indices[place]] = text
        return results

    def _run_in_batches(
        self,
        state: State,
        queries: Sequence[Query],
        items: Sequence[ItemT],
        lengths: Sequence[int],
        work: Callable[[Patch, list[ItemT]], list[ResultT]],
    ) -> list[ResultT]:
        """Return the results of `work` for the item of every query. The longest ones are run
        first."""
        if not queries:
            return []
        session = Session(self.lm, self.method, state)

        def run(selected: list[int]) -> list[tuple[int, ResultT]]:
            patch = session.patch([queries[i] for i in selected])
            return list(zip(selected, work(patch, [items[i] for i in selected]), strict=True))

        order = sorted(range(len(queries)), key=lambda i: -lengths[i])
        by_place = dict(pair for batch in run_in_batches(order, self.size, run) for pair in batch)
        return [by_place[index] for index in range(len(queries))]


def _request(typed_arguments: Mapping[str, str], size: str) -> RunRequest:
    """The run request of model arguments."""
    for key in typed_arguments:
        if key not in REQUEST_ARGUMENTS and not key.startswith("set."):
            raise UnknownName(
                "model argument", key, [*REQUEST_ARGUMENTS, *HARNESS_ARGUMENTS, "set.KEY"]
            )
    try:
        queries = parse_batch_size(size)
    except ValueError as error:
        raise UserError(f"batch_size: {error}", "Use 1 or more, or auto.") from None
    options = option_fields(RunRequest)
    fields = {
        name: parse_value(
            typed_arguments[name], options[name].info.kind or options[name].kind, name
        )
        for name in REQUEST_ARGUMENTS
        if name in typed_arguments
    }
    if fields.get("device") == "cuda:0" and not torch.cuda.is_available():
        fields["device"] = "auto"  # "cuda:0" is the default of lm-eval's command line
    return RunRequest(
        **{"method": "icl", "task": "", "model": NANO, **fields},
        settings={
            key.removeprefix("set."): value
            for key, value in typed_arguments.items()
            if key.startswith("set.")
        },
        batch_size=queries,
    )


def evaluate(
    *, model_args: str | Mapping[str, Any], tasks: Sequence[Any], **options: Any
) -> dict[str, Any]:
    """Run lm-eval's `simple_evaluate` with a method, with the same arguments and results.

    The model knows the tasks, so it cuts each prompt right before the document's text.
    """
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    def load_and_register(names: Any) -> Any:
        with lm_eval_errors(names):
            tasks = original_manager.load(names)
        model.prompts.tasks.update(tasks["tasks"])
        return tasks

    if options.pop("model", NAME) != NAME:
        raise UserError("Only model='ttabench' is supported.", "Use `lm_eval` for other models.")
    if options.get("use_cache"):
        fault = (
            "use_cache stores answers by prompt alone, so it would return those of other methods."
        )
        raise UserError(fault, "Remove it.")
    additional = {key: options.get(key) for key in ("batch_size", "device")}
    given_arguments = (
        simple_parse_args_string(model_args) if isinstance(model_args, str) else dict(model_args)
    )
    model = AdaptedLM.create_from_arg_obj(given_arguments, additional)
    original_manager = options.pop("task_manager", None) or TaskManager()
    manager = copy(original_manager)
    manager.load = load_and_register
    results = simple_evaluate(
        model=model, model_args=given_arguments, tasks=list(tasks), task_manager=manager, **options
    )
    # lm-eval writes its argument, which may be None
    results["config"]["batch_size"] = model.batch_size
    return dict(results)


def main() -> int:
    """Run lm-eval's command line with `--model ttabench`; user errors are one line and exit code
    2."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    if not {"--model", "-M", "ls", "validate"} & {
        argument.partition("=")[0] for argument in sys.argv
    }:
        sys.argv += ["--model", NAME]
    try:
        cli = HarnessCLI()
        arguments = cli.parse_args()
        if not {"batch_size", "config"} & {key for key, value in vars(arguments).items() if value}:
            # the default of lm-eval's command line is 1
            arguments.batch_size = str(DEFAULT_BATCH_SIZE)
        lm_eval.simple_evaluate = evaluate  # the name by which the command line finds it
        cli.execute(arguments)
    except (UserError, ValueError) as error:
        if not isinstance(error, UserError) and "Tasks not found" not in str(error):
            raise
        print(escape_control_characters(f"Error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 2
    return 0
