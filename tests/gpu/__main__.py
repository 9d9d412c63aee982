"""A first run on one GPU, within eight minutes: `python -m tests.gpu`, from the folder of the repository.

The table is printed as it is made and kept in results/gpu/. Nothing is fetched; a library that is missing is named.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--answers", default="float32,bfloat16,float16", help="their number formats"
    )
    parser.add_argument("--methods", default="", help="separated by commas; all by default")
    parser.add_argument(
        "--seconds", type=float, default=440.0, help="after which nothing more is begun"
    )
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 1 where an answer differs that should not."""
    options = arguments(words)
    try:
        import torch

        from tests.gpu.answers import compare
        from tests.gpu.report import Report
        from ttabench.core import environment
        from ttabench.methods import registry
        from ttabench.profiling.job import parse_method_names
    except ModuleNotFoundError as error:
        print(f"skipped: {error.name} is missing here")
        return 0
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("skipped: no CUDA GPU is here")
        return 0
    about = {
        **environment.package_versions(),
        **environment.describe_hardware(),
        **environment.code_version(),
    }
    report = Report(options.out, options.seconds, about)
    methods = parse_method_names(options.methods, registry.methods())
    alike = compare(report, options.device, methods, options.answers.split(","))
    report.timer.cancel()
    print(
        f"\nThe tables are in {options.out}. Answers {'are' if alike else 'are not'} as they should be."
    )
    return 0 if alike else 1


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
