"""Suite `composed`: sums of two contexts' states.

    ask(place, out)     make states of two texts separately, summed (`ttabench adapt --add`) and read in a row, and
                        answer the queries of both with each (`ttabench eval --state STATE --ask-only`)
    table(runs)         | method | context | F1 of the first text's queries | nats/token | of the second's | ... |

A text is four documents of synthetic StreamingQA. There are five draws of two texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from forgetting import quietly
from grids import table as markdown

from ttabench.readers import load
from ttabench.records.schema import RunRecord
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import estimate

METHODS = {
    "generative_adapter": "shipped:generative_adapter-streamingqa",
    "mac": "shipped:mac-streamingqa",
}
"""Methods with states that can be summed, and their adapters."""
DRAWS, DOCUMENTS, QUESTIONS = 5, 4, 4
SECOND = 100
"""Offset of the seed of a draw's second text."""
READ = {
    "first": "the first",
    "second": "the second",
    "sum": "both, states summed",
    "row": "both, read in a row",
}
LEGEND = f"""F1 (%) and answer NLL (nats/token) ± standard error over {DRAWS} draws of two texts and
their queries: {DOCUMENTS} documents per text, {QUESTIONS} queries per document. "States summed":
each text was read separately, and the two states were added."""


def ask(place: Path, out: Path) -> None:
    """Make the missing states and run the missing queries.

    Args:
        place: folder of the states and texts.
        out: folder of the runs.

    Raises:
        SystemExit: a command failed.
    """
    for draw in range(DRAWS):
        for seed in (draw, draw + SECOND):
            _text(place, seed)
        for method, checkpoint in METHODS.items():
            _states(place, draw, ["--method", method, "--checkpoint", checkpoint])
            for name in READ:
                _ask(place, draw, ["--method", method, "--checkpoint", checkpoint], name, out)


def _text(place: Path, seed: int) -> None:
    """Write the documents of a draw, one paragraph each."""
    (episode,) = load("streamingqa", source="mini", seed=seed, options=_options()).episodes()
    path = place / f"{seed}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(chunk.text for chunk in episode.chunks()) + "\n", encoding="utf-8")


def _options() -> dict[str, int]:
    return {"documents": DOCUMENTS, "questions": QUESTIONS}


def _states(place: Path, draw: int, method: Sequence[str]) -> None:
    folder = place / method[1] / str(draw)
    texts = {"first": place / f"{draw}.txt", "second": place / f"{draw + SECOND}.txt"}
    reads = {name: ["--context", str(text)] for name, text in texts.items()}
    after = ["--state", str(folder / "first")]
    reads |= {"sum": [*after, "--add", str(folder / "second")], "row": [*after, *reads["second"]]}
    for name, words in reads.items():
        quietly("adapt", *method, "--pieces", "paragraphs", *words, "--out", str(folder / name))


def _ask(place: Path, draw: int, method: Sequence[str], name: str, out: Path) -> None:
    state = place / method[1] / str(draw) / name
    options = [
        word for key, value in _options().items() for word in ("--task-set", f"{key}={value}")
    ]
    for seed in (draw, draw + SECOND):
        arguments = (
            "--task",
            "streamingqa",
            *options,
            "--seed",
            str(seed),
            "--state",
            str(state),
            "--ask-only",
        )
        quietly("eval", *method, *arguments, "--out", str(out))


def table(runs: Sequence[RunRecord]) -> str:
    """Return one table row per method and context of the state, with the scores of each text's
    queries.
    """
    cells: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for run in runs:
        name = Path(str(run.config["state"])).name
        text = "second" if int(run.config["seed"]) >= SECOND else "first"
        cells.setdefault((str(run.config["method"]), name), {}).setdefault(text, []).append(run)
    lines = [
        (
            method,
            READ[name],
            *_figures(cells[method, name]["first"]),
            *_figures(cells[method, name]["second"]),
        )
        for method in METHODS
        for name in READ
        if (method, name) in cells
    ]
    units = ("F1 (%)", "NLL (nats/token)")
    columns = [f"{text} text, {unit}" for text in ("first", "second") for unit in units]
    return f"{markdown(('method', 'context', *columns), lines, 2)}\n{LEGEND}\n"


def _figures(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield F1 and answer NLL over draws."""
    for metric, factor, places in (("f1", 100, 1), ("answer_nll", 1, 2)):
        rows = [(str(run.config["seed"]), run.value(metric)) for run in runs]
        mean = estimate(
            [
                Observation(draw, (factor * row.value, 1.0), draw)
                for draw, row in rows
                if row is not None
            ]
        )
        assert mean is not None, "a mean of figures is a number"
        error = "" if mean.stderr is None else f" ± {mean.stderr:.{places}f}"
        yield f"{mean.mean:.{places}f}{error}"
