"""One budget for every method: `--keep 0.2`, `--keep-tokens 256`, as settings of its own (`MethodSpec.keep`), which are
what a run is identified by; and how much was kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ttabench.core.declared import format_setting
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.parts.settings import Amount
from ttabench.methods.settings import parse_settings
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.records.samples import EpisodeCost


def parse_budget(keep: float | None, keep_tokens: int | None) -> Amount | None:
    """The budget asked for: a share (float) or tokens (int)."""
    if keep is not None and keep_tokens is not None:
        raise UserError(
            f"Both --keep {keep} and --keep-tokens {keep_tokens} are given.", "Give one of them."
        )
    if keep is not None and not 0 < keep <= 1:
        raise UserError(
            f"--keep must be above 0 and at most 1, got {keep}.", "Give a share, as --keep 0.2."
        )
    if keep_tokens is not None and keep_tokens < 1:
        raise UserError(
            f"--keep-tokens must be at least 1, got {keep_tokens}.",
            "Give a number, as --keep-tokens 256.",
        )
    return keep_tokens if keep is None else float(keep)


def budget_of_config(config: Mapping[str, Json]) -> Amount | None:
    """The budget that a stored configuration names; records of older versions name none."""
    return parse_budget(config.get("keep"), config.get("keep_tokens"))


def budget_label_and_settings(config: Mapping[str, Json]) -> tuple[str, frozenset[str]]:
    """The budget of a stored configuration in a word (`keep=0.2`), and the settings that it stands for."""
    amount = budget_of_config(config)
    with suppress(UserError, ValueError):  # a method that is not here, or has no such budget now
        if (
            amount is not None
            and (keep := registry.find_installed(str(config["method"])).keep) is not None
        ):
            word = f"keep={amount}" if isinstance(amount, float) else f"keep-tokens={amount}"
            return word, frozenset(keep(amount))
    return "", frozenset()


def format_budget(amount: Amount) -> str:
    """`20 %` or `256 tokens`."""
    return f"{amount:,} tokens" if isinstance(amount, int) else f"{100 * amount:.3g} %"


def apply_budget(spec: MethodSpec, amount: Amount, texts: Sequence[str]) -> tuple[str, ...]:
    """What was typed as `--set`, behind the settings that a budget stands for."""
    option, other_option = ("--keep", "--keep-tokens")[:: 1 if isinstance(amount, float) else -1]
    if spec.keep is None:
        known = ", ".join(
            name for name, method in registry.methods().items() if method.keep is not None
        )
        fault = f"{option} has no meaning for {spec.name}."
        raise UserError(fault, f"Leave it out, or choose a method with a budget: {known}.")
    try:
        settings = spec.keep(amount)
    except ValueError as error:
        fault = f"{option} {amount} does not fit {spec.name}: {error}."
        raise UserError(fault, f"Give another {option}, or {other_option}.") from None
    typed = parse_settings(spec, texts)
    for key, value in settings.items():
        if key in typed and typed[key] != value:
            fault = f"{option} sets {key}={format_setting(value)} of {spec.name}, and --set says {format_setting(typed[key])}."
            raise UserError(fault, "Leave one of them out.")
    return (*(f"{key}={format_setting(value)}" for key, value in settings.items()), *texts)


def kept_share(costs: Sequence[EpisodeCost]) -> float | None:
    """Bytes of all states over those of full context's keys and values; None where they are not known."""
    known = [cost.slots for cost in costs if cost.slots is not None]
    if not known or len(known) < len(costs):
        return None
    return sum(kept for kept, _ in known) / sum(full for _, full in known)


def format_kept_share(share: float | None, amount: Amount | None) -> str:
    """`20.6 % (asked 20 %)`, as tables have it; empty where nothing is known."""
    if share is None:
        return ""
    return format_budget(share) + (
        f" (asked {format_budget(amount)})" if amount is not None else ""
    )
