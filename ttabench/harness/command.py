"""lm-eval's evaluation and command line under a method."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import lm_eval
from lm_eval.utils import simple_parse_args_string

from ttabench.core.errors import UserError, printable
from ttabench.harness.model import NAME, QUERIES, AdaptedLM
from ttabench.readers.lm_eval import loading


class _KnowingManager:
    """lm-eval's task manager, which tells the model what tasks it loaded."""

    def __init__(self, manager: Any, model: AdaptedLM) -> None:
        self._manager, self._model = manager, model

    def load(self, tasks: Any) -> Any:
        with loading(tasks):
            loaded = self._manager.load(tasks)
        self._model.prompts.tasks.update(loaded["tasks"])
        return loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def evaluate(*, model_args: str | Mapping[str, Any], tasks: Sequence[Any], **options: Any) -> dict[str, Any]:
    """lm-eval's `simple_evaluate` under a method, with its arguments and its results.

    The model then knows the tasks, and cuts each prompt right before the document's own text.
    """
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    if options.pop("model", NAME) != NAME:
        raise UserError("This evaluates methods of ttabench only.", "Use `lm_eval` for other models.")
    if options.get("use_cache"):
        fault = (
            "use_cache keeps answers by prompt alone: those of another method would come back under this one's name."
        )
        raise UserError(fault, "Leave it out.")
    more = {key: options.get(key) for key in ("batch_size", "device")}
    given = simple_parse_args_string(model_args) if isinstance(model_args, str) else dict(model_args)
    model = AdaptedLM.create_from_arg_obj(given, more)
    manager = _KnowingManager(options.pop("task_manager", None) or TaskManager(), model)
    results = simple_evaluate(model=model, model_args=given, tasks=list(tasks), task_manager=manager, **options)
    assert results is not None, "one process has all results"
    results["config"]["batch_size"] = model.batch_size  # lm-eval writes what it was given, which may be nothing
    return dict(results)


def main() -> int:
    """lm-eval's command line with `--model ttabench`; a fault of the user's is one line and exit code 2."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    if not {"--model", "-M", "ls", "validate"} & {argument.partition("=")[0] for argument in sys.argv}:
        sys.argv += ["--model", NAME]
    try:
        cli = HarnessCLI()
        arguments = cli.parse_args()
        if not {"batch_size", "config"} & {key for key, value in vars(arguments).items() if value}:
            arguments.batch_size = str(QUERIES)  # lm-eval's command line says 1 where nobody said a number
        lm_eval.simple_evaluate = evaluate  # the name by which the command line finds it
        cli.execute(arguments)
    except (UserError, ValueError) as error:
        if not isinstance(error, UserError) and "Tasks not found" not in str(error):
            raise
        print(printable(f"Error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 2
    return 0
