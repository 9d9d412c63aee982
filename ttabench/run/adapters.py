"""The project's adapters: checkpoints in the package, and in a checkout of the repository."""

from __future__ import annotations

from pathlib import Path

from ttabench.core.errors import UserError, require_known
from ttabench.core.files import read_json_object
from ttabench.methods.checkpoints import HEADER_FILE, read_header, trained_tasks
from ttabench.run.request import OWN_QUESTIONS_TASK, SHIPPED_PREFIX

ADAPTERS_FOLDER = Path(__file__).parents[1] / "assets" / "adapters"
"""Folder of the bundled adapters. Its `chosen.json` lists all adapters of the project."""
ADAPTER_FOLDERS = (ADAPTERS_FOLDER, Path(__file__).parents[2] / "results" / "adapters")
"""Folders with adapters at BASE/NAME. The second exists only in a checkout of the repository."""
CHECKPOINT_TASK = {OWN_QUESTIONS_TASK: "streamingqa"}
"""Another task with the bundled checkpoints of a task. Both have the same prompts."""


def bundled_adapters() -> dict[str, str]:
    """Return the reason for choosing each adapter of the project, by BASE/NAME.

    Adapters that are not installed are included, see `find_adapters` for the installed ones.
    """
    return read_json_object(ADAPTERS_FOLDER / "chosen.json")


def find_adapters() -> dict[str, Path]:
    """Return the folders of the installed adapters, by BASE/NAME."""
    folders = [
        path.parent for folder in ADAPTER_FOLDERS for path in folder.glob(f"*/*/{HEADER_FILE}")
    ]
    return dict(sorted((f"{folder.parent.name}/{folder.name}", folder) for folder in folders))


def shipped_checkpoint(method: str, task: str, model: str) -> Path | None:
    """Return the project's checkpoint of a method for a task; None if there is none.

    The adapter named METHOD-TASK is preferred, then METHOD, which serves every task. Otherwise, it
    is a bundled adapter trained on several tasks including this one; of several such adapters, the
    one with the fewest tasks.

    Raises:
        UserError: the adapter exists in the project but is not installed.
    """
    name = CHECKPOINT_TASK.get(task, task)
    for adapter in (f"{model}/{method}-{name}", f"{model}/{method}"):
        if adapter in bundled_adapters():
            return _adapter_folder(adapter)
    candidates = [
        (len(tasks), folder)
        for adapter, folder in find_adapters().items()
        if adapter.startswith(f"{model}/{method}-")
        and folder.is_relative_to(ADAPTERS_FOLDER)
        and name in (tasks := trained_tasks(read_header(folder).training))
        and len(tasks) > 1
    ]
    return min(candidates, default=(0, None))[1]


def _adapter_folder(adapter: str) -> Path:
    folders = find_adapters()
    if adapter not in folders:
        raise UserError(
            f"The adapter {adapter} is not part of the installed package.",
            f"Download results/adapters/{adapter} from the repository. Use its path as --checkpoint.",
        )
    return folders[adapter]


def checkpoint_path(checkpoint: str, base: str) -> Path:
    """Return the folder of a checkpoint, given as a path or as `shipped:NAME` for this base model.

    Raises:
        UserError: no adapter has this name, or it is not installed.
    """
    if not checkpoint.startswith(SHIPPED_PREFIX):
        return Path(checkpoint)
    name = checkpoint.removeprefix(SHIPPED_PREFIX)
    known = [
        adapter.removeprefix(f"{base}/")
        for adapter in bundled_adapters()
        if adapter.startswith(f"{base}/")
    ]
    if not known:
        raise UserError(f"There is no bundled adapter for {base}.", "Run `ttabench train`.")
    require_known(f"bundled adapter for {base}", name, known)
    return _adapter_folder(f"{base}/{name}")
