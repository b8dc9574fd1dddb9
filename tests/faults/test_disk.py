"""A disk that fills up while a run saves: one line each time, and the same command finishes once there is room.

For `make soak` only, and only where a small file system can be mounted, which takes root.
"""

import contextlib
import os
import subprocess

import pytest

from tests.faults import fuzz
from tests.marl_jax.modes.test_train import launch, state

pytestmark = [pytest.mark.skipif(not fuzz.SOAK or os.geteuid() != 0, reason="make soak, as root"), pytest.mark.nightly]


@contextlib.contextmanager
def mounted(folder, options):
    """Mount a separate file system in a folder."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


@pytest.fixture
def small(tmp_path):
    """A file system of a megabyte, and a way to make it larger."""
    with mounted(tmp_path / "small", "size=900k") as folder:
        yield folder, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def test_a_disk_without_room_for_files_is_a_line_too(tmp_path, seen):
    settings = ("--config.steps=6", "--config.checkpoint.every=1", "--config.log.every=1000")
    with mounted(tmp_path / "few", "size=30m,nr_inodes=60") as folder:
        run = launch(folder / "run", tmp_path / "cache", *settings)
        said = run.communicate(timeout=600)[1]
    assert run.returncode == 1 and "Traceback" not in said, said
    assert "files free; it is not saved, and the run continues" in said and "step 6 could not be saved" in said
    seen("a file system for 60 files", "a line for every checkpoint without room", runs=1)


def test_a_full_disk_is_a_line_and_room_heals_it(small, tmp_path, seen):
    folder, resize = small
    settings = ("--config.steps=40", "--config.checkpoint.every=1", "--config.log.every=1000")
    run = launch(folder / "run", tmp_path / "cache", *settings)
    said = run.communicate(timeout=600)[1]
    assert run.returncode == 1, said
    assert "Traceback" not in said
    assert "could not be written" in said or "not saved, and the run continues" in said
    assert "step 40 could not be saved" in said
    resize("20m")
    again = launch(folder / "run", tmp_path / "cache", *settings)
    assert again.wait(600) == 0, again.stderr.read()
    assert state(folder / "run")[0] == 40
    seen("a file system of 900 KB", "a line for every checkpoint without room; with room, finished", runs=1)
