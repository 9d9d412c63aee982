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
from ttabench.core.files import At, read_text, reading
from ttabench.core.types import Ask, Choose, Episode, Generate, Json, Observe, Step
from ttabench.readers.base import Bound, behind, fingerprint, shares, spread
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import parsing
from ttabench.readers.sources import Request, Table, resolve, twin_table
from ttabench.readers.tokens import CutText, TokenCount, Tokens

NAMED = ("field", "marker")
"""What a cut may name."""
MAX_GENERATED = 256
"""New tokens where neither the task nor the command line says how many, as in lm-eval."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    cut: str = "field:context"
    """Where a prompt's context ends, see `context_end`: field:NAME or marker:TEXT."""
    piece: TokenCount = 512
    """Tokens of a piece, at most; it ends with a line where one fits."""


@dataclass(frozen=True, kw_only=True)
class LmEvalTask(Bound[Settings]):
    """A `readers.Task` over the contexts of a task of lm-eval."""

    contexts: Mapping[str, Sequence[Ask]]
    """Queries by what they ask about, in lm-eval's order."""

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, str]]:
        """One episode a context that is asked about."""
        limits = shares(self.limit, len(self.contexts))
        for (context, asks), share in zip(self.contexts.items(), limits, strict=True):
            if share != 0:
                steps: list[Step] = [*self._pieces(context, tokens), *spread(asks, share)]
                yield Episode(key=self.key(asks[0].key), steps=tuple(steps)), context

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the next context, of the last the first, in place of its own."""
        every = list(self.contexts)
        for episode, own in self.laid(tokens):
            other = self.apart({own}, behind(every, own), lambda context: {context})
            yield replace(episode, steps=(*self._pieces(other, tokens), *episode.asks()))

    def _pieces(self, context: str, tokens: Tokens | None) -> Iterator[Observe]:
        return CutText.of(context, tokens).pieces(self.settings.piece, fingerprint(context))

    def counts(self) -> dict[str, Json]:
        """Counts of contexts, and of the queries asked."""
        return {"contexts": len(self.contexts), "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Every document."""
        for context, asks in self.contexts.items():
            for ask in asks:
                options = ask.want.options if isinstance(ask.want, Choose) else ()
                yield from (ask.key, context, ask.prompt, *options, *ask.answers)


def read(card: Card, request: Request) -> LmEvalTask:
    """Bind a card of this reader to a task of lm-eval (`--source`); see `readers.load`."""
    if request.source == "hub":
        raise UserError(f"{card.name} needs the name of a task of lm-eval.", "Give --source babilong_qa1, or its YAML.")
    settings, arguments = resolve(card, request, Settings)
    contexts = defaultdict[str, list[Ask]](list)
    if request.source == "mini":
        data = twin_table(card, request.split, request.seed, arguments)
        for raw in data.rows:
            turns: Any = raw.values["multi_turns"]
            for number, turn in enumerate(turns):
                want = card.prompt.generated((turn["answer"],))
                ask = _ask(f"{raw.values['id']}/{number}", f"\n\n{turn['input']}", want)
                contexts[raw.text("context")].append(ask)
    else:
        if request.split != "test":
            raise UserError("A task of lm-eval is asked on the split that lm-eval evaluates.", "Leave --split out.")
        task = loaded(request.source)
        data = Table(label=f"lm-eval:{task.config.task}")
        for number, row in enumerate(task.eval_docs):
            context, ask = _of_document(task, str(number), row, settings.cut)
            contexts[context].append(ask)
    if any(isinstance(ask.want, Choose) for asks in contexts.values() for ask in asks):
        card = card.measured("acc", "acc_norm", "option_nll")
    return LmEvalTask(card=card, request=request, settings=settings, arguments=arguments, data=data, contexts=contexts)


def _ask(key: str, query: str, want: Choose | Generate) -> Ask:
    return Ask(prompt=query, question=query.strip(), key=key, joiner="", want=want)


def reading_task(name: object) -> AbstractContextManager[At]:
    """The boundary around what lm-eval does to find a task and load its data."""
    hint = "Use a name of `lm_eval ls tasks`, install what the task needs, or go online for its data."
    return reading(f"The task {name!s:.100} of lm-eval", hint, most=None)


def loaded(name: str) -> Any:
    """The one task of lm-eval with this name, or of this YAML file.

    Raises:
        UserError: there is none, it is a group, or its data are not on this machine.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    with reading_task(name):
        if name.endswith((".yaml", ".yml")):
            with reading(name):
                if not isinstance(yaml.compose(read_text(Path(name))), yaml.MappingNode):
                    raise ValueError("it is no mapping")
        else:  # an index of all tasks takes seconds to build
            word = re.compile(rb"(?<!\w)%s(?!\w)" % re.escape(name.encode()))
            files = (file for file in Path(lm_eval.__path__[0], "tasks").rglob("*") if file.suffix in ("", ".yaml"))
            if not any(word.search(file.read_bytes()) for file in files if file.is_file()):
                raise UserError(f"lm-eval has no task {name!r}.", "Use a name of `lm_eval ls tasks`, or a YAML file.")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it names every default of a task file
    with reading_task(name):
        tasks: Mapping[str, Any] = TaskManager().load([name])["tasks"]
    if len(tasks) != 1:
        raise UnknownName("task of lm-eval", name, list(tasks))
    return next(iter(tasks.values()))


def _of_document(task: Any, number: str, row: Mapping[str, Any], cut: str) -> tuple[str, Ask]:
    """(the context in the prompt that lm-eval makes of a document, the rest of it with the requests)."""
    config, name = task.config, task.config.task
    with parsing(f"{name} document {number}"):
        prompt = task.fewshot_context(row, int(config.num_fewshot or 0), gen_prefix=task.doc_to_prefix(row))
        if not isinstance(prompt, str) or config.output_type not in ("multiple_choice", "generate_until"):
            fault = f"{name} is no task of choices behind one prompt, nor one that is answered by writing."
            raise UserError(fault, "Run it with `python -m ttabench.harness`.")
        made = task.construct_requests(row, prompt, metadata=(name, int(number), 1))
        want = _chosen(task, row, made) if isinstance(made, list) else _written(task, row, made)
    end = context_end(name, prompt, row, cut)
    if end <= 0:
        raise UserError(f"{name}: prompt {number} does not hold what cut={cut} names.", "Name another.")
    return prompt[:end], _ask(number, prompt[end:], want)


def context_end(task: str, prompt: str, row: object, cut: str) -> int:
    """Where the context of a prompt ends; 0 where it does not hold what is named.

    Args:
        cut: field:NAME, behind the text of this field of the document, where it stands last; marker:TEXT, in front of
            this text, likewise (\\n is a line break, and quotes around it may be left out).
    """
    kind, _, text = cut.partition(":")
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    name = (text[1:-1] if quoted else text).replace("\\n", "\n")
    if kind not in NAMED or not name:
        raise UnknownName("cut", cut, ["field:NAME", "marker:TEXT"])
    if kind == "marker":
        return max(0, prompt.rfind(name))
    document = row if isinstance(row, Mapping) else {}
    if not isinstance(held := document.get(name), str):
        texts = ", ".join(key for key, cell in document.items() if isinstance(cell, str))
        fault = f"{task}: its documents have no text in a field {name!r}; those with a text: {texts}."
        raise UserError(fault, "Name one of them, or give marker:TEXT.")
    begin = prompt.rfind(held.strip())
    return begin + len(held.strip()) if held.strip() and begin >= 0 else 0


def _chosen(task: Any, row: Mapping[str, Any], requests: Sequence[Any]) -> Choose:
    """The options as lm-eval scores them, with what stands in front of each."""
    names, target = [str(choice) for choice in task.doc_to_choice(row)], task.doc_to_target(row)
    return Choose(
        options=tuple(request.args[1] for request in requests[: len(names)]),  # then those of `acc_mutual_info`
        gold=target if isinstance(target, int) else names.index(str(target)),
        delimiter=task.config.target_delimiter,
    )


def _written(task: Any, row: Mapping[str, Any], request: Any) -> Generate:
    """What is written, until lm-eval's stops."""
    target, (count, stops) = task.doc_to_target(row), decoding(request.args[1])
    answers = target if isinstance(target, list | tuple) else [target]
    return Generate(
        answers=tuple(dict.fromkeys(map(str, answers))), delimiter=task.config.target_delimiter, max_new_tokens=count,
        stops=tuple(stops),
    )  # fmt: skip


def decoding(arguments: Mapping[str, Any]) -> tuple[int, list[str]]:
    """(new tokens, stop strings) of lm-eval's generation arguments."""
    from lm_eval.models.utils import normalize_gen_kwargs

    normalised = normalize_gen_kwargs(dict(arguments), MAX_GENERATED)
    if normalised.get("do_sample") or int(normalised.get("num_beams", 1)) > 1:
        raise UserError("The task asks for sampling or a beam search.", "Decode greedily: do_sample=false, one beam.")
    stops = normalised.get("until") or []
    return int(normalised["max_gen_toks"]), [stops] if isinstance(stops, str) else stops
