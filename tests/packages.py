"""Packages of others, as pip installs them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path


def install(package: Path, entries: Mapping[str, str] | None = None) -> None:
    """Write the metadata of a package of `ttabench new package`, in its folder.

    With the folder in PYTHONPATH, it is installed. `entries`: further entry points of methods.
    """
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"]
    groups["ttabench.methods"] |= entries or {}
    info = package / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".format(**project)
    )
    lines = (
        line
        for group, offers in groups.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in offers.items()))
    )
    (info / "entry_points.txt").write_text("\n".join(lines))
