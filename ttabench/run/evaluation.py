"""Execution of a plan: return the stored run, or load the base model, run and record.

The weight deltas of a `--base-checkpoint` (`lora`) are merged into the base model before it reads
anything. The fingerprint is that of the merged weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ttabench.core.digests import digest_path, refuse_changed_files
from ttabench.core.environment import restore_global_state, seed_everything
from ttabench.core.errors import UserError
from ttabench.core.types import ProgressCallback, no_log, no_progress
from ttabench.methods import registry
from ttabench.methods.checkpoints import read_header
from ttabench.records.folder import RunFolder, RunResult, get_or_run
from ttabench.records.schema import RunRecord
from ttabench.run.adapters import checkpoint_path
from ttabench.run.plan import Plan, base_model_digests, file_digests
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.lm.model import LM

EvaluationResult: TypeAlias = RunResult[RunRecord]
LOAD_OPTIONS = ("random_weights", "device", "dtype", "bos", "max_context")
"""Fields of a request that are arguments of `lm.model.load`."""


def base_model_key(
    request: RunRequest, *, chat_template: bool
) -> tuple[str | bool | int | None, ...]:
    """Return the options that decide which base model is loaded, and in which form."""
    names = ("model", "base_checkpoint", *LOAD_OPTIONS, "thinking")
    return (*(getattr(request, name) for name in names), chat_template)


class ModelCache:
    """Cache of the last loaded base model, shared by runs with equal options and equal files."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._lm: LM | None = None

    def get(self, request: RunRequest, *, chat_template: bool = False) -> LM:
        """Return the base model of a request, loading it if it is not the cached one."""
        options = base_model_key(request, chat_template=chat_template)
        inputs = base_model_digests(request)
        if self._lm is not None and self._key == (options, inputs):
            return self._lm
        from ttabench.lm.model import load as load_lm

        self._lm = None  # two models may not fit into memory
        lm = load_lm(request.model, **{name: getattr(request, name) for name in LOAD_OPTIONS})
        if request.base_checkpoint:
            lm = merge_checkpoint(
                lm, checkpoint_path(request.base_checkpoint, request.model), request.base_checkpoint
            )
        if chat_template:
            lm.use_chat_template(thinking=request.thinking)
        refuse_changed_files(inputs, base_model_digests(request))
        lm.inputs = {name: value for name, value in inputs.items() if value}
        self._key, self._lm = (options, inputs), lm
        return lm


MODEL_CACHE = ModelCache()
"""Cache of this process."""


def merge_checkpoint(lm: LM, folder: Path, name: str) -> LM:
    """Add the weight deltas of a checkpoint to the base model, in place.

    Args:
        name: name of the checkpoint in records.

    Raises:
        UserError: the checkpoint's method reads contexts, or the checkpoint that it was trained on
            top of is missing or has changed.
    """
    import torch

    from ttabench.lm.forward.patching import weight_changes
    from ttabench.methods import checkpoints

    header = read_header(folder)
    if registry.find_installed(header.method).growth != "none":
        fault = f"{folder} is a checkpoint of {header.method}, which needs a context to read."
        raise UserError(fault, "Use a checkpoint of lora as --base-checkpoint.")
    if header.stands_on and not lm.stands_on:
        parent_name = str(header.stands_on["name"])
        parent_folder = checkpoint_path(parent_name, lm.name)
        if not parent_folder.exists():
            fault = f"{folder} was trained on top of {parent_name}, which does not exist."
            raise UserError(fault, f"Restore {parent_name}, or train {folder} again.")
        if digest_path(parent_folder) != header.stands_on["digest"]:
            fault = f"{folder} was trained on top of {parent_name}, which has changed since."
            raise UserError(fault, f"Restore the old {parent_name}, or train {folder} again.")
        merge_checkpoint(lm, parent_folder, parent_name)
    method = checkpoints.load(registry.find_installed(header.method).load(), lm, folder)
    patch = method.patch(method.begin(1), [])
    assert patch.prefix is None is patch.tokens_BT, f"{header.method} changes more than weights"
    with torch.no_grad():
        for parameter_name, change in weight_changes(lm, patch.deltas).items():
            parameter = lm.model.get_parameter(parameter_name)
            parameter.add_(change.reshape(parameter.shape).to(parameter.dtype))
    stands_on = {"stands_on": dict(lm.stands_on)} if lm.stands_on else {}
    lm.set_base_checkpoint(
        {"name": name, "digest": digest_path(folder), "training": header.training, **stands_on}
    )
    return lm


def execute(
    plan: Plan,
    models: ModelCache,
    out: Path,
    *,
    force: bool = False,
    on_progress: ProgressCallback = no_progress,
    log: Callable[[str], None] = no_log,
) -> EvaluationResult:
    """Return the run stored in `out`, or run it, resuming an interrupted one, and store it.

    Args:
        force: ignore stored results and run from the start.

    Raises:
        UserError: the folder cannot be written, the stored record is corrupted, the model or the
            checkpoint cannot be loaded, or the context does not fit the model.
    """
    work = partial(_run, plan, models, on_progress, log)
    return get_or_run(out / plan.config.identity(), work, force=force, log=log)


@restore_global_state()
def _run(
    plan: Plan,
    models: ModelCache,
    on_progress: ProgressCallback,
    log: Callable[[str], None],
    folder: RunFolder,
) -> RunRecord:
    from ttabench.methods.states import reporting_misfit
    from ttabench.run.recording import caveats, make_record
    from ttabench.run.runner import RunContext, contexts_per_batch, run_episodes

    config = plan.config
    seed_everything(config.seed)
    lm = models.get(plan.request, chat_template=config.chat_template)
    if lm.server is not None:
        lm.server.use_replies(folder.replies, folder.store_reply)
    method = plan.resolved.build(lm)
    state = plan.request.state
    start = None if state is None else plan.resolved.stored_state(state, lm)
    refuse_changed_files(file_digests(plan.request, plan.resolved), plan.config.inputs)
    context = RunContext(
        lm=lm,
        method=method,
        metrics=plan.metrics,
        batch_size=config.batch_size,
        start=start,
        ask_only=config.ask_only,
        state_of=config.state_of,
        boost=config.boost,
        batch_contexts=config.batch_contexts,
    )
    with reporting_misfit(state, method.name):
        size = run_episodes(context, plan.task, folder, on_progress)
    if not folder.samples:
        dropped_counts = ", ".join(
            f"{count} {reason}" for reason, count in plan.task.dropped.items()
        )
        fault = (
            f"No query of {config.task} is left with the tokenizer of {lm.name}: {dropped_counts}."
        )
        raise UserError(
            fault, "Set higher limits with --task-set; run `ttabench list tasks` to see them."
        )
    notes = caveats(plan, method, folder)
    if config.batch_contexts > 1:
        batching_note = (
            f"up to {config.batch_contexts} contexts were read in one batch: "
            "seconds are shares, bytes include padding"
        )
        notes.append(
            batching_note
            if contexts_per_batch(context) > 1
            else f"contexts were read one at a time: {method.name} does not batch them in this run"
        )
    for note in notes:
        log(f"Note: {note}.")
    return folder.finish(make_record(plan, lm, method, folder, notes, size.rows))
