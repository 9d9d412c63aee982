"""What is written is whole or not there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ttabench.core.errors import UserError
from ttabench.core.files import (
    PART_SUFFIX,
    make_writable_folder,
    remove_partial_files,
    replace_atomically,
    write_atomically,
)


class Killed(BaseException):
    """Nobody catches it."""


def test_a_file_is_replaced_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "figures.bin"
    path.write_bytes(b"old")
    with replace_atomically(path) as scratch:
        scratch.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert scratch.parent == tmp_path
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fault", [ValueError, Killed])
def test_what_is_cut_off_leaves_the_old_file_alone(
    tmp_path: Path, fault: type[BaseException]
) -> None:
    path = tmp_path / "figures.bin"
    path.write_bytes(b"old")

    def cut_off() -> None:
        with replace_atomically(path) as scratch:
            scratch.write_bytes(b"ne")
            raise fault

    with pytest.raises(fault):
        cut_off()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_what_we_left_half_written_is_swept(tmp_path: Path) -> None:
    for name in ("movie.mkv.part", ".movie.mkv.part", ".notes.part"):
        (tmp_path / name).write_text("mine")
    (tmp_path / ".backup.part").mkdir()
    (tmp_path / ".backup.part" / "letters.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with (
        replace_atomically(tmp_path / "run.json") as file,
        replace_atomically(tmp_path / "save", folder=True) as folder,
    ):
        for half in (file, folder):
            assert half.name.endswith(PART_SUFFIX)
        remove_partial_files(tmp_path)
        assert sorted(tmp_path.rglob("*")) == before
        file.touch()
        folder.mkdir()


def test_a_folder_is_tried_while_another_process_sweeps_it(tmp_path: Path) -> None:
    ended = threading.Event()

    def sweeping() -> None:
        while not ended.is_set():
            remove_partial_files(tmp_path)

    other = threading.Thread(target=sweeping)
    other.start()
    try:
        for _ in range(300):
            make_writable_folder(tmp_path, tmp_path)
    finally:
        ended.set()
        other.join()
    assert not list(tmp_path.iterdir())


def test_what_others_wrote_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    with pytest.raises(UserError, match=r"page\.html"):
        write_atomically(path, "ours", lambda file: file.read_text() == "ours")
    assert path.read_text() == "mine"
    path.unlink()
    for _ in range(2):
        write_atomically(path, "ours", lambda file: file.read_text() == "ours")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"page\.html"):
        write_atomically(path, "ours", lambda _: False)
