"""Resolution of a request's method: spec, preset, settings and checkpoint. No model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ttabench.core.digests import digest_path, refuse_changed_files
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.checkpoints import is_peft_folder, read_header, settings_from_header
from ttabench.methods.pair import PAIR_SEPARATOR, PairSpec, join_by_label, split_settings
from ttabench.methods.settings import (
    build_settings,
    default_settings,
    json_values,
    parse_settings,
    resolve_preset,
)
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import SETTING_PREFIX
from ttabench.run.adapters import ADAPTER_FOLDERS, checkpoint_path, shipped_checkpoint
from ttabench.run.budget import budget_settings, parse_budget
from ttabench.run.request import NO_CHECKPOINT, SHIPPED_PREFIX, RunRequest

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class ResolvedMethod:
    """Resolved method: spec, settings and checkpoint, before a model is loaded."""

    spec: MethodSpec
    preset: str
    """Name of the preset in use; empty if there is none."""
    settings_object: Any
    """All settings in use, as an instance of `spec.Settings`."""
    checkpoint: Path | None = None
    checkpoint_digest: str = ""
    """For a pair, the digests of its parts, joined."""
    training: Mapping[str, Json] = field(default_factory=dict)
    """Training record of the checkpoint."""
    parts: tuple[ResolvedMethod, ...] = ()
    """Parts of a pair `A+B`; empty for a single method."""
    bits: int | None = None
    """See `methods.quantised`."""

    @cached_property
    def settings(self) -> dict[str, Json]:
        """All settings in use, as JSON values."""
        return json_values(asdict(self.settings_object))

    def build(self, lm: LM) -> Method[Any]:
        """Build the method on a base model."""
        method = self._build_plain(lm)
        if self.bits is None:
            return method
        from ttabench.methods.quantised import quantise_states

        return quantise_states(method, self.bits)

    def _build_plain(self, lm: LM) -> Method[Any]:
        if self.checkpoint is None:
            pair_arguments = [[part.build(lm) for part in self.parts]] if self.parts else []
            method: Method[Any] = self.spec.load()(lm, self.settings_object, *pair_arguments)
            return method
        from ttabench.methods import checkpoints

        method = checkpoints.load(self.spec.load(), lm, self.checkpoint, self.settings_object)
        refuse_changed_files(
            {"checkpoint": digest_path(self.checkpoint)}, {"checkpoint": self.checkpoint_digest}
        )
        return method

    def checkpoint_name(self) -> str:
        """Return the checkpoint's name: its path, or `shipped:NAME` for a bundled adapter."""
        if self.checkpoint is None:
            return PAIR_SEPARATOR.join(
                name for part in self.parts if (name := part.checkpoint_name())
            )
        is_shipped = any(self.checkpoint.is_relative_to(folder) for folder in ADAPTER_FOLDERS)
        return f"{SHIPPED_PREFIX}{self.checkpoint.name}" if is_shipped else str(self.checkpoint)

    def setting_inputs(self) -> dict[str, str]:
        """Return digests of the files, folders and hub models named in settings, by `setting KEY`.

        The digest of a hub model is its cached commit. A model that is not cached yet has none.
        """
        hints = get_type_hints(self.spec.Settings)
        return {
            f"{SETTING_PREFIX}{key}": digest
            for key, value in self.settings.items()
            if value
            and isinstance(value, str)
            and str in (hints[key], *get_args(hints[key]))
            and (digest := _digest_if_exists(value))
        }

    def notes(self) -> list[str]:
        """List the notes on results of this method."""
        if self.parts or not self.spec.trainable or self.checkpoint is not None:
            return [note for part in self.parts for note in part.notes()]
        name = self.spec.name
        return [
            f"{name} has no checkpoint: its modules are untrained, so this does not measure {name}"
        ]

    def state_identity(self, lm: LM) -> dict[str, Json]:
        """Return the identity of a state made by this method on `lm`, see `methods/states`."""
        return {
            "method": self.spec.name,
            "settings": dict(self.settings),
            "model": lm.name,
            "fingerprint": lm.fingerprint,
            "checkpoint": self.checkpoint_digest,
            "start": lm.tokenizer.decode(list(lm.start_ids)),
            "inputs": {**lm.inputs, **self.setting_inputs()},
            **({"origin": self.spec.origin} if self.spec.origin else {}),
            **({"bits": self.bits} if self.bits else {}),
            **({"frequencies": lm.frequencies} if lm.frequencies else {}),
        }

    def stored_state(self, folder: Path, lm: LM) -> State:
        """Load a state written by `ttabench adapt`, or by peft if the method supports it."""
        from ttabench.methods.states import load_state

        load_from_peft = getattr(self.spec.load(), "from_peft", None)
        if load_from_peft is not None and is_peft_folder(folder):
            state: State = load_from_peft(lm, self.settings_object, folder)
            return state
        return load_state(
            folder, self.state_identity(lm), str(lm.device), default_settings(self.spec)
        )


def _digest_if_exists(value: str) -> str:
    """Return the digest of a path or a cached hub model; "" if neither exists."""
    # OSError: the text is too long for a path. RuntimeError: "~user" is unknown.
    with suppress(OSError, RuntimeError):
        if (path := Path(value).expanduser()).exists():
            return digest_path(path)
    if value.count("/") != 1:
        return ""
    from ttabench.lm.loading.hub import hub_commit

    return hub_commit(value, fetch=False)


def resolve_method(request: RunRequest, *, hash_checkpoint: bool = True) -> ResolvedMethod:
    """Resolve the method of a request: spec, preset, settings and checkpoint.

    Settings are merged in this order, later ones win: defaults, preset (or the settings stored in
    the checkpoint), `--keep`, `--set`. With `hash_checkpoint=False` the method is for display only.
    """
    return replace(_resolve_unquantised(request, hash_checkpoint), bits=request.bits)


def _resolve_unquantised(request: RunRequest, hash_checkpoint: bool) -> ResolvedMethod:
    spec = registry.find_method(request.method)
    preset = resolve_preset(spec, request.preset, request.model)
    typed = parse_settings(spec, request.settings)
    amount = parse_budget(request.keep, request.keep_tokens)
    changes = {**budget_settings(spec, amount, typed), **typed}
    if isinstance(spec, PairSpec):
        owner, parts = _checkpoint_owner(request, spec), split_settings(spec.parts, changes)
    else:
        owner, parts = spec.name, [(spec, changes)]
    resolved = []
    for part, values in parts:
        part_preset = next((name for name in (preset, request.model) if name in part.presets), "")
        checkpoint = request.checkpoint if owner in (part.name, NO_CHECKPOINT) else ""
        folder = _find_checkpoint(request, part, part_preset, checkpoint)
        found = _resolve_single(part, part_preset, values, folder)
        digest = digest_path(folder) if folder is not None and hash_checkpoint else ""
        resolved.append(replace(found, checkpoint_digest=digest))
    if not isinstance(spec, PairSpec):
        return resolved[0]
    return ResolvedMethod(
        spec=spec,
        preset=preset,
        settings_object=spec.Settings(
            **join_by_label(spec.labels, [part.settings_object for part in resolved])
        ),
        checkpoint_digest=PAIR_SEPARATOR.join(
            part.checkpoint_digest for part in resolved if part.checkpoint_digest
        ),
        parts=tuple(resolved),
    )


def _checkpoint_owner(request: RunRequest, spec: PairSpec) -> str:
    """Return the part that gets the typed checkpoint; "" or NO_CHECKPOINT if none was typed."""
    if request.checkpoint in ("", NO_CHECKPOINT):
        return request.checkpoint
    folder = checkpoint_path(request.checkpoint, request.base_name)
    owner = read_header(folder).method
    if owner not in [part.name for part in spec.parts if part.trainable]:
        fault = f"{folder} is a checkpoint of {owner}."
        raise UserError(fault, f"Use --method {owner}, or a pair that includes {owner}.")
    return owner


def _resolve_single(
    spec: MethodSpec, preset: str, changes: Mapping[str, Json], checkpoint: Path | None
) -> ResolvedMethod:
    """Resolve a single method, or a part of a pair."""
    if checkpoint is None:
        settings = build_settings(spec, changes, preset)
        return ResolvedMethod(spec=spec, preset=preset, settings_object=settings)
    header = read_header(checkpoint)
    return ResolvedMethod(
        spec=spec,
        preset="",
        settings_object=settings_from_header(header, spec, changes, checkpoint),
        checkpoint=checkpoint,
        training=header.training,
    )


def _find_checkpoint(
    request: RunRequest, spec: MethodSpec, preset: str, checkpoint: str
) -> Path | None:
    """Return the folder of a typed or bundled checkpoint of a single method; None if it has none."""
    if checkpoint == NO_CHECKPOINT or (not checkpoint and not spec.trainable):
        return None
    if checkpoint:
        if not spec.trainable:
            fault = f"{spec.name} has no trained parameters, so it takes no checkpoint."
            raise UserError(fault, "Remove --checkpoint.")
        if request.preset in spec.presets:
            raise UserError(
                "--checkpoint and --preset exclude each other: a checkpoint has its own settings.",
                "Remove --preset, or use --checkpoint none.",
            )
        return checkpoint_path(checkpoint, request.base_name)
    if spec.origin or request.random_weights or preset not in ("", request.model):
        return None  # bundled adapters fit only built-in methods, with the preset of the model
    return shipped_checkpoint(spec.name, request.task, request.base_name)
