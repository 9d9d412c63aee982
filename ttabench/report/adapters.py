"""The project's adapters: where each lies, what it was trained with (from its own header) and chosen on."""

from __future__ import annotations

from ttabench.core.amounts import count
from ttabench.methods.checkpoint_header import Header, header, trained_tasks
from ttabench.run.resolve import ADAPTERS, chosen, shipped
from ttabench.terminal.table import Cell, Table

EPISODES = "pieces an episode × queries a piece"
COLUMNS = ("adapter", "#parameters", "trained on", EPISODES, "rate", "#seed", "#steps", "#pieces read", "#queries",
           "labels", "#tokens", "#minutes", "lies in", "chosen on")  # fmt: skip
GOLD_LOSSES = ("own_aux", "retrieval_aux", "attention_aux")
"""Weights of MAC's losses that are told which document holds the answer (`Ask.source_key`)."""


def adapters_table() -> Table:
    """Every adapter that is here, a row each."""
    words, here = chosen(), shipped()
    data = [
        {
            "adapter": name,
            **_told(header(folder)),
            "lies_in": "package" if folder.is_relative_to(ADAPTERS) else "results/adapters",
            "chosen_on": words[name],
        }
        for name, folder in here.items()
    ]
    rows = tuple(tuple(_shown(name, value) for name, value in row.items()) for row in data)
    caption = (
        "Load one with --checkpoint shipped:NAME. Rate: the highest. Labels: what training was told beside texts and "
        "answers. Minutes beside other work, on one or two cores."
    )
    if elsewhere := sorted(words.keys() - here.keys()):
        caption += f" In results/adapters of the project's repository, not installed: {', '.join(elsewhere)}."
    return Table(title="adapters", columns=COLUMNS, rows=rows, data=tuple(data), caption=caption, names=("adapter",))


def _told(header: Header) -> dict[str, Cell]:
    training = header.training
    config = training["config"]
    data = config["data"]
    options = "".join(f" {option}" for option in data["options"])
    after = ", after an earlier stage" if data.get("begins") else ""
    return {
        "parameters": header.parameters,
        "trained_on": f"{' + '.join(trained_tasks(training))}{options}, {data['source']} {data['split']}{after}",
        "episodes": f"{', '.join(map(str, data['documents']))} × {data['questions']}",
        "rate": f"{config['lr']:g} {config['schedule']} {config.get('optimizer', 'adam')}",
        "seed": config["seed"], "steps": training["steps"], "pieces_read": training["observes"],
        "queries": training["asks"],
        "labels": "gold documents" if any(header.settings.get(name) for name in GOLD_LOSSES) else "none",
        "tokens": training.get("tokens"), "minutes": training["seconds"] / 60,
    }  # fmt: skip


def _shown(name: str, value: Cell) -> str:
    if name in ("parameters", "tokens"):
        return count(value) if isinstance(value, int) else ""
    if name == "minutes":
        return f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
