"""Memory budgets: `--keep 0.2` and `--keep-tokens 256` as settings of a method.

`MethodSpec.keep` translates a budget. The run id hashes the resulting settings, not the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ttabench.core.declared import format_setting
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.parts.settings import Amount
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.records.samples import EpisodeCost


def parse_budget(keep: float | None, keep_tokens: int | None) -> Amount | None:
    """Parse a budget: a share of the context (float) or a number of tokens (int)."""
    if keep is not None and keep_tokens is not None:
        raise UserError(
            f"--keep {keep} and --keep-tokens {keep_tokens} exclude each other.", "Use one of them."
        )
    if keep is not None and not 0 < keep <= 1:
        raise UserError(
            f"--keep must be above 0 and at most 1, got {keep}.", "Use a share, such as --keep 0.2."
        )
    if keep_tokens is not None and keep_tokens < 1:
        raise UserError(
            f"--keep-tokens must be at least 1, got {keep_tokens}.",
            "Use a whole number, such as --keep-tokens 256.",
        )
    return keep_tokens if keep is None else float(keep)


def budget_of_config(config: Mapping[str, Json]) -> Amount | None:
    """Return the budget of a stored configuration; None in records of older versions."""
    return parse_budget(config.get("keep"), config.get("keep_tokens"))


def budget_label_and_settings(config: Mapping[str, Json]) -> tuple[str, frozenset[str]]:
    """Return the label (`keep=0.2`) of a stored budget, and the keys of the settings it implies."""
    amount = budget_of_config(config)
    # the method may not be installed, or may no longer have such a budget
    with suppress(UserError, ValueError):
        if (
            amount is not None
            and (keep := registry.find_installed(str(config["method"])).keep) is not None
        ):
            label = f"keep={amount}" if isinstance(amount, float) else f"keep-tokens={amount}"
            return label, frozenset(keep(amount))
    return "", frozenset()


def format_budget(amount: Amount) -> str:
    """Format a budget as `20 %` or `256 tokens`."""
    return f"{amount:,} tokens" if isinstance(amount, int) else f"{100 * amount:.3g} %"


def budget_settings(
    spec: MethodSpec, amount: Amount | None, typed: Mapping[str, Json]
) -> Mapping[str, Json]:
    """Return the settings that a budget implies, none without a budget.

    Args:
        typed: values of `--set`.

    Raises:
        UserError: the method has no budget, the budget does not fit it, or `--set` contradicts it.
    """
    if amount is None:
        return {}
    option, other_option = "--keep-tokens", "--keep"
    if isinstance(amount, float):
        option, other_option = "--keep", "--keep-tokens"
    if spec.keep is None:
        known = ", ".join(
            name for name, method in registry.methods().items() if method.keep is not None
        )
        fault = f"{spec.name} has no memory budget."
        raise UserError(fault, f"Remove {option}, or use one of: {known}.")
    try:
        settings = spec.keep(amount)
    except ValueError as error:
        fault = f"{option} {amount} does not fit {spec.name}: {error}."
        raise UserError(fault, f"Use another {option}, or {other_option}.") from None
    for key, value in settings.items():
        if key in typed and typed[key] != value:
            fault = (
                f"{option} implies {key}={format_setting(value)} for {spec.name}, "
                f"but --set has {key}={format_setting(typed[key])}."
            )
            raise UserError(fault, "Remove one of them.")
    return settings


def kept_share(costs: Sequence[EpisodeCost]) -> float | None:
    """Return the bytes of all states over those of the full KV cache; None if any is unknown."""
    known = [cost.slots for cost in costs if cost.slots is not None]
    if not known or len(known) < len(costs):
        return None
    return sum(kept for kept, _ in known) / sum(full for _, full in known)


def format_kept_share(share: float | None, amount: Amount | None) -> str:
    """Format a kept share and its budget for a table cell; empty if the share is unknown."""
    if share is None:
        return ""
    return format_budget(share) + (
        f" (budget {format_budget(amount)})" if amount is not None else ""
    )
