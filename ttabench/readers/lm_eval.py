"""A task of lm-evaluation-harness whose documents bring the text that they ask about: it is read, and the rest asked.

    ttabench eval --task lm_eval --source babilong_qa1 --task-set cut=field:input --method kvzip --keep 0.2

    Episode("lm_eval/babilong_qa1/0", [Observe(piece 1), Observe(piece 2), Ask("Where is Mary? Answer with ...")])

The prompt is lm-eval's own, and its tokens are those of the whole where no token joins text on both sides of the cut.
Documents with one context are one episode. Choices are lm-eval's continuations, so `acc` and `acc_norm` are its figures
under full context; what is written is compared with `doc_to_target` by metrics of ours (lm-eval's own functions score
it under `python -m ttabench.harness`). A task file may name Python functions, which lm-eval runs.
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
from ttabench.readers.base import Task, fingerprint, pick_evenly, rows_after, split_limit
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import report_row_errors
from ttabench.readers.sources import RawTable, Request, resolve_settings, synthetic_table
from ttabench.readers.tokens import TokenCount, TokenizedText, Tokens

CUT_KINDS = ("field", "marker")
"""What a cut may name."""
MAX_NEW_TOKENS = 256
"""New tokens where neither the task nor the command line says how many, as in lm-eval."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    cut: str = "field:context"
    """Where a prompt's context ends, see `find_context_end`: field:NAME or marker:TEXT."""
    piece: TokenCount = 512
    """Tokens of a piece, at most; it ends with a line where one fits."""


@dataclass(frozen=True, kw_only=True)
class LmEvalTask(Task[Settings]):
    """A `readers.Task` over the contexts of a task of lm-eval."""

    contexts: Mapping[str, Sequence[Query]]
    """Queries by what they ask about, in lm-eval's order."""

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, str]]:
        """One episode a context that is asked about."""
        limits = split_limit(self.limit, len(self.contexts))
        for (context, queries), share in zip(self.contexts.items(), limits, strict=True):
            if share != 0:
                steps: list[Step] = [*self._chunks(context, tokens), *pick_evenly(queries, share)]
                yield Episode(key=self.episode_key(queries[0].key), steps=tuple(steps)), context

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the next context, of the last the first, in place of its own."""
        every = list(self.contexts)
        for episode, own in self.episodes_with_source(tokens):
            other = self.first_disjoint({own}, rows_after(every, own), lambda context: {context})
            yield replace(episode, steps=(*self._chunks(other, tokens), *episode.queries()))

    def _chunks(self, context: str, tokens: Tokens | None) -> Iterator[Chunk]:
        return TokenizedText.tokenize(context, tokens).chunks(
            self.settings.piece, fingerprint(context)
        )

    def counts(self) -> dict[str, Json]:
        """Counts of contexts, and of the queries asked."""
        return {"contexts": len(self.contexts), "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Every document."""
        for context, queries in self.contexts.items():
            for query in queries:
                options = query.want.options if isinstance(query.want, Choose) else ()
                yield from (query.key, context, query.prompt, *options, *query.answers)


def read(card: Card, request: Request) -> LmEvalTask:
    """Bind a card of this reader to a task of lm-eval (`--source`); see `readers.load`."""
    if request.source == "hub":
        raise UserError(
            f"{card.name} needs the name of a task of lm-eval.",
            "Give --source babilong_qa1, or its YAML.",
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
                "A task of lm-eval is asked on the split that lm-eval evaluates.",
                "Leave --split out.",
            )
        task = load_lm_eval_task(request.source)
        data = RawTable(label=f"lm-eval:{task.config.task}")
        for number, row in enumerate(task.eval_docs):
            context, query = _split_document(task, str(number), row, settings.cut)
            contexts[context].append(query)
    if any(isinstance(query.want, Choose) for queries in contexts.values() for query in queries):
        card = card.with_metrics("acc", "acc_norm", "option_nll")
    return LmEvalTask(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        data=data,
        contexts=contexts,
    )


def _query(key: str, prompt: str, want: Choose | Generate) -> Query:
    return Query(prompt=prompt, question=prompt.strip(), key=key, joiner="", want=want)


def lm_eval_errors(name: object) -> AbstractContextManager[FilePosition]:
    """The boundary around what lm-eval does to find a task and load its data."""
    hint = (
        "Use a name of `lm_eval ls tasks`, install what the task needs, or go online for its data."
    )
    return reading_file(f"The task {name!s:.100} of lm-eval", hint, max_bytes=None)


def load_lm_eval_task(name: str) -> Any:
    """The one task of lm-eval with this name, or of this YAML file.

    Raises:
        UserError: there is none, it is a group, or its data are not on this machine.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    with lm_eval_errors(name):
        if name.endswith((".yaml", ".yml")):
            with reading_file(name):
                if not isinstance(yaml.compose(read_text(Path(name))), yaml.MappingNode):
                    raise ValueError("it is no mapping")
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
                    "Use a name of `lm_eval ls tasks`, or a YAML file.",
                )
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it names every default of a task file
    with lm_eval_errors(name):
        tasks: Mapping[str, Any] = TaskManager().load([name])["tasks"]
    if len(tasks) != 1:
        raise UnknownName("task of lm-eval", name, list(tasks))
    return next(iter(tasks.values()))


def _split_document(task: Any, number: str, row: Mapping[str, Any], cut: str) -> tuple[str, Query]:
    """(the context in the prompt that lm-eval makes of a document, the rest of it with the requests)."""
    config, name = task.config, task.config.task
    with report_row_errors(f"{name} document {number}"):
        prompt = task.fewshot_context(
            row, int(config.num_fewshot or 0), gen_prefix=task.doc_to_prefix(row)
        )
        if not isinstance(prompt, str) or config.output_type not in (
            "multiple_choice",
            "generate_until",
        ):
            fault = f"{name} is no task of choices behind one prompt, nor one that is answered by writing."
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
            f"{name}: prompt {number} does not hold what cut={cut} names.", "Name another."
        )
    return prompt[:end], _query(number, prompt[end:], want)


def find_context_end(task: str, prompt: str, row: object, cut: str) -> int:
    """Where the context of a prompt ends; 0 where it does not hold what is named.

    Args:
        cut: field:NAME, behind the text of this field of the document, where it stands last; marker:TEXT, in front of
            this text, likewise (\\n is a line break, and quotes around it may be left out).
    """
    kind, _, text = cut.partition(":")
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    name = (text[1:-1] if quoted else text).replace("\\n", "\n")
    if kind not in CUT_KINDS or not name:
        raise UnknownName("cut", cut, ["field:NAME", "marker:TEXT"])
    if kind == "marker":
        return max(0, prompt.rfind(name))
    document = row if isinstance(row, Mapping) else {}
    if not isinstance(held := document.get(name), str):
        texts = ", ".join(key for key, cell in document.items() if isinstance(cell, str))
        fault = (
            f"{task}: its documents have no text in a field {name!r}; those with a text: {texts}."
        )
        raise UserError(fault, "Name one of them, or give marker:TEXT.")
    begin = prompt.rfind(held.strip())
    return begin + len(held.strip()) if held.strip() and begin >= 0 else 0


def _choose_want(task: Any, row: Mapping[str, Any], requests: Sequence[Any]) -> Choose:
    """The options as lm-eval scores them, with what stands in front of each."""
    names, target = [str(choice) for choice in task.doc_to_choice(row)], task.doc_to_target(row)
    return Choose(
        options=tuple(
            request.args[1] for request in requests[: len(names)]
        ),  # then those of `acc_mutual_info`
        gold=target if isinstance(target, int) else names.index(str(target)),
        delimiter=task.config.target_delimiter,
    )


def _generate_want(task: Any, row: Mapping[str, Any], request: Any) -> Generate:
    """What is written, until lm-eval's stops."""
    target, (count, stops) = task.doc_to_target(row), decoding_limits(request.args[1])
    answers = target if isinstance(target, list | tuple) else [target]
    return Generate(
        answers=tuple(dict.fromkeys(map(str, answers))),
        delimiter=task.config.target_delimiter,
        max_new_tokens=count,
        stops=tuple(stops),
    )


def decoding_limits(arguments: Mapping[str, Any]) -> tuple[int, list[str]]:
    """(new tokens, stop strings) of lm-eval's generation arguments."""
    from lm_eval.models.utils import normalize_gen_kwargs

    normalised = normalize_gen_kwargs(dict(arguments), MAX_NEW_TOKENS)
    if normalised.get("do_sample") or int(normalised.get("num_beams", 1)) > 1:
        raise UserError(
            "The task asks for sampling or a beam search.",
            "Decode greedily: do_sample=false, one beam.",
        )
    stops = normalised.get("until") or []
    return int(normalised["max_gen_toks"]), [stops] if isinstance(stops, str) else stops
