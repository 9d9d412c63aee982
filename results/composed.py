"""What two contexts' states hold together: the suite `composed`.

    ask(place, out)     states of two texts apart, put together (`ttabench adapt --add`) and read in a row, and the
                        questions of both asked of each (`ttabench eval --state STATE --ask-only`)
    table(runs)         | method | what was read | F1 of the first text's questions | nats | of the second's | ... |

A text is four documents of streamingqa's twin; five draws of two texts.
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
"""Methods whose states can be put together, and their adapters."""
DRAWS, DOCUMENTS, QUESTIONS = 5, 4, 4
SECOND = 100
"""What is added to a draw's seed for its second text."""
READ = {
    "first": "the first",
    "second": "the second",
    "sum": "both, put together",
    "row": "both, in a row",
}
LEGEND = f"""F1 (per cent) and nats a token of the right answer ± standard error over {DRAWS} draws of two texts and
their questions: {DOCUMENTS} documents a text, {QUESTIONS} questions a document. "Put together": each text was read by
itself, and the second state put to the first."""


def ask(place: Path, out: Path) -> None:
    """Make the states that are not there, and ask them what was not asked yet.

    Args:
        place: where the states and the texts lie.
        out: folder of the runs.

    Raises:
        SystemExit: a command that failed.
    """
    for draw in range(DRAWS):
        for seed in (draw, draw + SECOND):
            _text(place, seed)
        for method, checkpoint in METHODS.items():
            _states(place, draw, ["--method", method, "--checkpoint", checkpoint])
            for name in READ:
                _ask(place, draw, ["--method", method, "--checkpoint", checkpoint], name, out)


def _text(place: Path, seed: int) -> None:
    """The documents of a draw, a paragraph each."""
    (episode,) = load("streamingqa", source="mini", seed=seed, options=_options()).episodes()
    path = place / f"{seed}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(piece.text for piece in episode.chunks()) + "\n", encoding="utf-8")


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
        asked = (
            "--task",
            "streamingqa",
            *options,
            "--seed",
            str(seed),
            "--state",
            str(state),
            "--ask-only",
        )
        quietly("eval", *method, *asked, "--out", str(out))


def table(runs: Sequence[RunRecord]) -> str:
    """A line a method and what its state has read, and the figures of the questions about each text."""
    cells: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for run in runs:
        name = Path(str(run.config["state"])).name
        whose = "second" if int(run.config["seed"]) >= SECOND else "first"
        cells.setdefault((str(run.config["method"]), name), {}).setdefault(whose, []).append(run)
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
    columns = [f"{unit} of the {whose}" for whose in ("first", "second") for unit in ("F1", "nats")]
    return f"{markdown(('method', 'read', *columns), lines, 2)}\n{LEGEND}\n"


def _figures(runs: Sequence[RunRecord]) -> Iterator[str]:
    """F1 and nats, a value a draw."""
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
