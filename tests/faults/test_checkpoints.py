"""Damaged checkpoints: whatever file is hit, the newest whole checkpoint is restored exactly and the rest is named."""

import json
import logging
import random
import shutil

import pytest

from marl_jax.errors import CheckpointError
from marl_jax.running.checkpoint import Checkpoints
from tests.faults import fuzz
from tests.marl_jax.running.test_checkpoint import RUN, assert_equal, make_state, save

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with the checkpoints of steps 1 and 2, the second better."""
    folder = tmp_path_factory.mktemp("run")
    checkpoints = Checkpoints(folder, keep=3)
    for step in (1, 2):
        save(checkpoints, step, metric=0.1 * step)
    checkpoints.close()
    return folder


def copy_of(run, folder):
    shutil.copytree(run / "checkpoints", folder / "checkpoints")
    return folder / "checkpoints" / "2"


SMALL = {
    "metrics/metrics": [b"", b"{}", b'{"metric": "x"}'],
    "_CHECKPOINT_METADATA": [
        b"[]",
        b"7",
        b"[" * 100_000,
        b'{"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 1' + b"0" * 30 + b"}",
    ],
    "seal.json": [
        b"null",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b'{"a\\u0000b": [0, 0]}',
        b'{"\\ud800": [0, 0]}',
        b"\xff",
        b'{"' + b"a" * 5000 + b'": [0, 0]}',
    ],
    "meta/metadata": [b""],
}


@pytest.mark.parametrize("file, content", [(file, content) for file, found in SMALL.items() for content in found])
def test_a_small_damaged_file_does_not_stop_a_resume(run, tmp_path, caplog, file, content):
    (copy_of(run, tmp_path) / file).write_bytes(content)
    reader = Checkpoints(tmp_path, read_only=True)
    assert reader.restore(make_state()).step == 1
    checkpoints = Checkpoints(tmp_path, keep=3)
    with caplog.at_level(logging.WARNING, "marl_jax"):
        restored = checkpoints.restore(make_state(), run=RUN)
    assert restored.step == 1 and checkpoints.best == 1 and "step 2 cannot be used" in caplog.text
    assert_equal(restored.state, make_state(1))
    save(checkpoints, 2, metric=0.9)  # the run comes by again
    assert checkpoints.best == 2 and checkpoints.restore(make_state()).step == 2
    checkpoints.close()


@pytest.mark.parametrize("name", ["seal.json", "metrics", "state"])
@pytest.mark.parametrize("kind", ["a loop of links", "a folder", "a file"])
def test_something_else_in_the_place_of_a_file_does_not_stop_a_resume(run, tmp_path, name, kind):
    place = copy_of(run, tmp_path) / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    make = {"a loop of links": lambda: place.symlink_to(place), "a folder": place.mkdir, "a file": place.touch}
    make[kind]()
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.restore(make_state(), run=RUN).step == 1
    checkpoints.close()


def test_a_step_that_cannot_be_read_is_refused_by_name(run, tmp_path):
    (copy_of(run, tmp_path) / "metrics" / "metrics").write_bytes(b"")
    with pytest.raises(CheckpointError, match="checkpoints/2 cannot be used: metrics/metrics has changed"):
        Checkpoints(tmp_path, read_only=True).restore(make_state(), step=2)


@pytest.mark.parametrize("part", ["state", "meta", "metrics"])
def test_a_seal_that_leaves_files_out_is_not_believed(run, tmp_path, caplog, part):
    seal = copy_of(run, tmp_path) / "seal.json"
    kept = {name: value for name, value in json.loads(seal.read_text()).items() if not name.startswith(part)}
    seal.write_text(json.dumps(kept))
    with caplog.at_level(logging.WARNING, "marl_jax"):
        assert Checkpoints(tmp_path, read_only=True).restore(make_state()).step == 1
    assert f"step 2 cannot be used (seal.json does not name '{part}/" in caplog.text


def test_with_nothing_readable_the_run_is_refused(run, tmp_path):
    copy_of(run, tmp_path)
    for seal in (tmp_path / "checkpoints").glob("*/seal.json"):
        seal.write_bytes(b"null")
    with pytest.raises(CheckpointError, match=r"all checkpoints \[2, 1\] are damaged"):
        Checkpoints(tmp_path).restore(make_state())


@fuzz.sharded
def test_damage_anywhere_gives_the_newest_whole_state(run, tmp_path, seen, shard):
    files = sorted(p.relative_to(run / "checkpoints" / "2") for p in (run / "checkpoints" / "2").rglob("*"))
    for seed in (seeds := fuzz.rounds(12, 200, shard)):
        rng, folder = random.Random(seed), tmp_path / str(seed)
        hit = copy_of(run, folder) / rng.choice(files)
        if rng.random() < 0.1:
            shutil.rmtree(hit) if hit.is_dir() else hit.unlink()
        elif hit.is_file():
            hit.write_bytes(fuzz.damage(rng, hit.read_bytes()))
        checkpoints = Checkpoints(folder, keep=3)
        restored = checkpoints.restore(make_state(), run=RUN)
        assert_equal(restored.state, make_state(restored.step))
        assert restored.meta["pool"] == [restored.step], hit
        checkpoints.close()
        shutil.rmtree(folder)
    what = "any file of the newest checkpoint cut, changed, replaced or removed"
    seen(what, "the newest whole state each time, no wrong value", rounds=len(seeds))
