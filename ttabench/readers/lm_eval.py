"""Tasks of lm-evaluation-harness with a context in each document: the context is read, the rest is
the query.

    ttabench eval --task lm_eval --source babilong_qa1 --task-set cut=field:input --method kvzip

    Episode("lm_eval/babilong_qa1/0", [Chunk(1), Chunk(2), Query("Where is Mary? Answer with ...")])

The prompt is lm-eval's own. Its tokens are those of the whole prompt unless a token joins text on
both sides of the cut. Documents with the same context form one episode. Options are lm-eval's
continuations, so `acc` and `acc_norm` equal its values under full context. Generated answers are
compared with `doc_to_target` by ttabench's metrics (under `python -m ttabench.harness`, lm-eval's
own functions score them). A task file may name Python functions, which lm-eval runs.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import FilePosition, read_text, reading_file
from ttabench.core.types import Choose, Chunk, Episode, Generate, Json, Query, Step
from ttabench.readers.base import Task, divide_limit, fingerprint, pick_evenly, rows_after
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import report_row_errors
from ttabench.readers.sources import RawTable, Request, resolve_settings, synthetic_table
from ttabench.readers.tokens import TokenCount, TokenizedText, Tokens

CUT_KINDS = ("field", "marker")
"""Possible kinds of `cut`."""
MAX_NEW_TOKENS = 256
"""Default of generated tokens if neither the task nor the command line sets it, as in lm-eval."""


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    cut: str = "field:context"
    """End of the context in a prompt, see `find_context_end`: field:NAME or marker:TEXT."""
    piece: TokenCount = 512
    """Maximum tokens of a chunk; it ends with a line if one fits."""


@dataclass(frozen=True)
class LmEvalTask(Task[Settings]):
    """A `Task` over the contexts of a task of lm-eval."""

    contexts: Mapping[str, Sequence[Query]]
    """Queries by the context that they are about, in lm-eval's order."""

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, str]]:
        """Yield one episode per queried context."""
        for (context, queries), share in divide_limit(self.limit, self.contexts.items()):
            if share != 0:
                steps: list[Step] = [*self._chunks(context, tokens), *pick_evenly(queries, share)]
                yield Episode(key=self.episode_key(queries[0].key), steps=tuple(steps)), context

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield each episode with the next context in place of its own; the last gets the first."""
        every = list(self.contexts)
        for episode, own in self.episodes_with_source(tokens):
            other = self.first_disjoint({own}, rows_after(every, own), lambda context: {context})
            yield replace(episode, steps=(*self._chunks(other, tokens), *episode.queries()))

    def _chunks(self, context: str, tokens: Tokens | None) -> Iterator[Chunk]:
        return TokenizedText.tokenize(context, tokens).chunks(
            self.settings.piece, fingerprint(context)
        )

    def counts(self) -> dict[str, Json]:
        """Count contexts and queries."""
        return {"contexts": len(self.contexts), "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield every document."""
        for context, queries in self.contexts.items():
            for query in queries:
                options = query.want.options if isinstance(query.want, Choose) else ()
                yield from (query.key, context, query.prompt, *options, *query.answers)


def read(card: Card, request: Request) -> LmEvalTask:
    """Bind a card of this reader to a task of lm-eval (`--source`); see `readers.load`."""
    if request.source == "hub":
        raise UserError(
            f"{card.name} needs the name of a task of lm-eval.",
            "Set --source to the name, e.g. babilong_qa1, or to its YAML file.",
        )
    settings, arguments = resolve_settings(card, request, Settings)
    contexts = defaultdict[str, list[Query]](list)
    if request.source == "mini":
        data = synthetic_table(card, request.split, request.seed, arguments)
        for raw in data.rows:
            turns: Any = raw.values["multi_turns"]
            for number, turn in enumerate(turns):
                want = card.prompt.make_generate((turn["answer"],))
                query = _query(f"{raw.values['id']}/{number}", f"\n\n{turn['input']}", want)
                contexts[raw.text("context")].append(query)
    else:
        if request.split != "test":
            raise UserError(
                "A task of lm-eval always uses the split that lm-eval evaluates.", "Remove --split."
            )
        task = load_lm_eval_task(request.source)
        data = RawTable(label=f"lm-eval:{task.config.task}")
        for number, row in enumerate(task.eval_docs):
            context, query = _split_document(task, str(number), row, settings.cut)
            contexts[context].append(query)
    if any(isinstance(query.want, Choose) for queries in contexts.values() for query in queries):
        card = card.with_metrics("acc", "acc_norm", "option_nll")
    return LmEvalTask(card, request, settings, arguments, data, contexts)


def _query(key: str, prompt: str, want: Choose | Generate) -> Query:
    return Query(prompt=prompt, question=prompt.strip(), key=key, joiner="", want=want)


def lm_eval_errors(name: object) -> AbstractContextManager[FilePosition]:
    """Report errors of lm-eval, when it finds a task or loads its data, as UserErrors."""
    hint = (
        "Use a name from `lm_eval ls tasks`, install its requirements, or go online for its data."
    )
    return reading_file(f"The task {name!s:.100} of lm-eval", hint, max_bytes=None)


def load_lm_eval_task(name: str) -> Any:
    """Load the one task of lm-eval with this name, or of this YAML file.

    Raises:
        UserError: the task does not exist, is a group, or its data are not on this machine.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    with lm_eval_errors(name):
        if name.endswith((".yaml", ".yml")):
            with reading_file(name):
                if not isinstance(yaml.compose(read_text(Path(name))), yaml.MappingNode):
                    raise ValueError("it must be a mapping")
        else:  # an index of all tasks takes seconds to build
            word = re.compile(rb"(?<!\w)%s(?!\w)" % re.escape(name.encode()))
            files = (
                file
                for file in Path(lm_eval.__path__[0], "tasks").rglob("*")
                if file.suffix in ("", ".yaml")
            )
            if not any(word.search(file.read_bytes()) for file in files if file.is_file()):
                raise UserError(
                    f"lm-eval has no task {name!r}.",
                    "Use a name from `lm_eval ls tasks`, or a YAML file.",
                )
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it logs every default of a task file
    with lm_eval_errors(name):
        tasks: Mapping[str, Any] = TaskManager().load([name])["tasks"]
    if len(tasks) != 1:
        raise UnknownName("task of lm-eval", name, list(tasks))
    return next(iter(tasks.values()))


def _split_document(task: Any, number: str, row: Mapping[str, Any], cut: str) -> tuple[str, Query]:
    """Return (the context in lm-eval's prompt of a document, the rest of the prompt as a query)."""
    config, name = task.config, task.config.task
    with report_row_errors(f"{name} document {number}"):
        prompt = task.fewshot_context(
            row, int(config.num_fewshot or 0), gen_prefix=task.doc_to_prefix(row)
        )
        if not isinstance(prompt, str) or config.output_type not in (
            "multiple_choice",
            "generate_until",
        ):
            fault = f"{name} has neither choices after a single prompt nor generated answers."
            raise UserError(fault, "Run it with `python -m ttabench.harness`.")
        requests = task.construct_requests(row, prompt, metadata=(name, int(number), 1))
        want = (
            _choose_want(task, row, requests)
            if isinstance(requests, list)
            else _generate_want(task, row, requests)
        )
    end = find_context_end(name, prompt, row, cut)
    if end <= 0:
        raise UserError(
            f"{name}: cut={cut} does not occur in prompt {number}.", "Use another --task-set cut."
        )
    return prompt[:end], _query(number, prompt[end:], want)


def find_context_end(task: str, prompt: str, row: object, cut: str) -> int:
    """Return the end of the context in a prompt; 0 if the prompt does not contain the cut.

    Args:
        cut: field:NAME ends after the last occurrence of that document field's text. marker:TEXT
            ends before the last occurrence of the text (\\n is a line break; quotes are optional).
    """
    kind, _, text = cut.partition(":")
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    name = (text[1:-1] if quoted else text).replace("\\n", "\n")
    if kind not in CUT_KINDS or not name:
        raise UnknownName("cut", cut, ["field:NAME", "marker:TEXT"])
    if kind == "marker":
        return max(0, prompt.rfind(name))
    document = row if isinstance(row, Mapping) else {}
    if not isinstance(field_text := document.get(name), str):
        texts = ", ".join(key for key, cell in document.items() if isinstance(cell, str))
        fault = (
            f"{task}: its documents have no text in a field {name!r}; fields with a text: {texts}."
        )
        raise UserError(fault, "Use one of them, or marker:TEXT.")
    begin = prompt.rfind(field_text.strip())
    return begin + len(field_text.strip()) if field_text.strip() and begin >= 0 else 0


def _choose_want(task: Any, row: Mapping[str, Any], requests: Sequence[Any]) -> Choose:
    """Return the options as lm-eval scores them."""
    names, target = [str(choice) for choice in task.doc_to_choice(row)], task.doc_to_target(row)
    option_requests = requests[: len(names)]  # further requests are those of `acc_mutual_info`
    return Choose(
        options=tuple(request.args[1] for request in option_requests),
        gold=target if isinstance(target, int) else names.index(str(target)),
        delimiter=task.config.target_delimiter,
    )


def _generate_want(task: Any, row: Mapping[str, Any], request: Any) -> Generate:
    """Return the target of a generated answer, with lm-eval's stops."""
    target, (count, stops) = task.doc_to_target(row), decoding_limits(request.args[1])
    answers = target if isinstance(target, list | tuple) else [target]
    return Generate(
        answers=tuple(dict.fromkeys(map(str, answers))),
        delimiter=task.config.target_delimiter,
        max_new_tokens=count,
        stops=tuple(stops),
    )


def decoding_limits(arguments: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return (new tokens, stop strings) of lm-eval's generation arguments."""
    from lm_eval.models.utils import normalize_gen_kwargs

    normalised = normalize_gen_kwargs(dict(arguments), MAX_NEW_TOKENS)
    if normalised.get("do_sample") or int(normalised.get("num_beams", 1)) > 1:
        raise UserError(
            "The task needs sampling or beam search.",
            "Set do_sample=false and num_beams=1 in the task: only greedy decoding is supported.",
        )
    stops = normalised.get("until") or []
    return int(normalised["max_gen_toks"]), [stops] if isinstance(stops, str) else stops
