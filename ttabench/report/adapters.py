"""The adapters that ship: what each was trained with and chosen on, from its own header.

    adapter                trained on                steps   tokens   ...   chosen on
    nano/mac-streamingqa   streamingqa, mini train   1,200   3.93 M   ...   latents, auxiliary losses and optimiser: ...

What a header cannot know, what its recipe was chosen on, stands in `assets/adapters/chosen.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttabench.core.amounts import count
from ttabench.core.checked_file import json_of
from ttabench.methods.checkpoint_header import HEADER, Header, header, trained_tasks
from ttabench.run.resolve import ASSETS
from ttabench.terminal.table import Cell, Table

ADAPTERS = ASSETS / "adapters"
CHOSEN = "chosen.json"
EPISODES = "pieces an episode × queries a piece"


def adapters_table() -> Table:
    """Every adapter that ships, a row each."""
    chosen = json_of(ADAPTERS / CHOSEN)
    assert isinstance(chosen, dict), chosen
    data = [
        {"adapter": name, **_told(header(folder)), "chosen_on": str(chosen[name])} for name, folder in shipped().items()
    ]
    names = ["adapter", "#parameters", "trained on", EPISODES, "rate", "#seed", "#steps", "#pieces read", "#queries"]
    caption = (
        "Load one with --checkpoint shipped:NAME. Rate: the highest. Minutes beside other work, on one or two cores."
    )
    return Table(
        title="adapters",
        columns=(*names, "#tokens", "#minutes", "chosen on"),
        rows=tuple(tuple(_shown(name, value) for name, value in row.items()) for row in data),
        data=tuple(data),
        caption=caption,
        names=("adapter",),
    )


def shipped() -> dict[str, Path]:
    """Folders by BASE/NAME."""
    headers = sorted(ADAPTERS.glob(f"*/*/{HEADER}"))
    return {path.parent.relative_to(ADAPTERS).as_posix(): path.parent for path in headers}


def _told(header: Header) -> dict[str, Cell]:
    training: Mapping[str, Any] = header.training
    config = training["config"]
    return {
        "parameters": header.parameters,
        "trained_on": _data(training),
        "episodes": _episodes(config["data"]),
        "rate": f"{config['lr']:g} {config['schedule']} {config.get('optimizer', 'adam')}",
        "seed": config["seed"],
        "steps": training["steps"],
        "pieces_read": training["observes"],
        "queries": training["asks"],
        "tokens": training.get("tokens"),
        "minutes": training["seconds"] / 60,
    }


def _shown(name: str, value: Cell) -> str:
    if name in ("parameters", "tokens"):
        return count(value) if isinstance(value, int) else ""
    if name == "minutes":
        return f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _data(training: Mapping[str, Any]) -> str:
    """`streamingqa, mini train`, with options and further tasks."""
    data = training["config"]["data"]
    options = "".join(f" {option}" for option in data["options"])
    after = ", after an earlier stage" if data.get("begins") else ""
    return f"{' + '.join(trained_tasks(training))}{options}, {data['source']} {data['split']}{after}"


def _episodes(data: Mapping[str, Any]) -> str:
    """Pieces of an episode, lengths that take turns, and queries about each."""
    return f"{', '.join(map(str, data['documents']))} × {data['questions']}"
