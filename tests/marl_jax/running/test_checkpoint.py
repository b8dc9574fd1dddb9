"""Checkpoints: exact, the newest whole one and the best kept, clear about misfits, calm about a full disk."""

import errno
import json
import logging
import os
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from marl_jax.errors import CheckpointError
from marl_jax.running import checksums as seals
from marl_jax.running.checkpoint import FORMAT, Checkpoints

RUN = {"model": {"name": "tiny", "d_model": 128}}


def make_state(seed=0):
    params = {"embed": jax.random.normal(jax.random.key(seed), (64, 32)), "norm": jnp.ones(7, jnp.bfloat16)}
    return {
        "params": params,
        "optimizer": optax.adamw(1e-3).init(params),
        "key": jax.random.key(seed + 1),
        "step": jnp.int32(seed),
    }


def save(checkpoints, step, metric=None):
    assert checkpoints.save(step, make_state(step), {"run": RUN, "pool": [step]}, metric)
    checkpoints.wait()


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = (jax.random.key_data(z) if jnp.issubdtype(z.dtype, jax.dtypes.prng_key) else z for z in (x, y))
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def data_file(workdir, step):
    """The file of a checkpoint that holds the arrays."""
    files = (p for p in (workdir / "checkpoints" / str(step) / "state").rglob("*") if p.is_file())
    return max(files, key=lambda p: p.stat().st_size)


def test_round_trip_is_exact_and_keeps_types(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore(make_state()) is None
    save(checkpoints, 3)
    checkpoints.close()
    step, state, meta = Checkpoints(tmp_path).restore(jax.eval_shape(make_state), run=RUN)
    assert step == 3 and meta["pool"] == [3] and meta["format"] == FORMAT
    assert_equal(state, make_state(3))


def test_a_state_donated_right_after_saving_is_saved_as_it_was(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = {"w": jnp.arange(1 << 20, dtype=jnp.float32)}
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    checkpoints.save(1, state, {})
    jax.block_until_ready(overwrite(state))
    restored = checkpoints.restore({"w": jax.ShapeDtypeStruct((1 << 20,), jnp.float32)}).state
    np.testing.assert_array_equal(restored["w"], np.arange(1 << 20, dtype=np.float32))


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2, every=5)
    assert checkpoints.due(10) and not checkpoints.due(11)
    for step, metric in [(5, 0.2), (10, 0.9), (15, None), (20, float("nan")), (25, 0.4)]:
        save(checkpoints, step, metric)
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert kept == [10, 20, 25] and checkpoints.best == 10 and checkpoints.latest == 25
    assert [checkpoints.named(step) for step in ("newest", "best", "20")] == [25, 10, 20]
    assert checkpoints.restore(make_state(), step=checkpoints.best).step == 10
    checkpoints.close()
    again = Checkpoints(tmp_path, keep=2)
    assert again.best == 10
    save(again, 30)
    assert sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir()) == [10, 25, 30]


def test_without_a_metric_there_is_no_best(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        checkpoints.named("newest")
    save(checkpoints, 1)
    assert checkpoints.best is None
    with pytest.raises(CheckpointError, match="has no best checkpoint: none has a value of checkpoint.best_metric"):
        checkpoints.named("best")


def test_the_least_is_best_where_asked(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, best_mode="min")
    assert checkpoints.improves(0.9)
    for step, metric in [(1, 0.5), (2, 0.1), (3, 0.7)]:
        save(checkpoints, step, metric)
    assert checkpoints.best == 2
    checkpoints.close()
    again = Checkpoints(tmp_path, keep=1, best_mode="min")
    assert [again.improves(metric) for metric in (0.05, 0.1, 0.9, float("nan"), None)] == [True] + 4 * [False]


@pytest.mark.nightly_for("cut", "missing")
@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "seal"])
def test_a_damaged_checkpoint_is_passed_over_with_a_word(tmp_path, caplog, damage):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    save(checkpoints, 2)
    checkpoints.close()
    file = data_file(tmp_path, 2) if damage != "seal" else tmp_path / "checkpoints" / "2" / "seal.json"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match="cannot be used"):
        Checkpoints(tmp_path, read_only=True).restore(make_state(), step=2)
    checkpoints = Checkpoints(tmp_path)
    with caplog.at_level(logging.WARNING, "marl_jax"):
        restored = checkpoints.restore(make_state())
    assert restored.step == 1
    assert "step 2 cannot be used" in caplog.text
    assert_equal(restored.state, make_state(1))
    save(checkpoints, 2)  # the run comes by again and must not leave the damaged one in place
    assert_equal(checkpoints.restore(make_state()).state, make_state(2))


def test_a_half_written_checkpoint_does_not_count(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.close()
    left = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp" / "state"
    left.mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore(make_state()).step == 1
    assert not left.exists()


def test_nothing_whole_is_an_error_not_a_fresh_start(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.close()
    data_file(tmp_path, 1).unlink()
    for _ in range(2):  # the same command again must not begin anew either
        with pytest.raises(CheckpointError, match="are damaged; use another folder"):
            Checkpoints(tmp_path).restore(make_state())


def test_another_model_is_refused_with_the_field(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    with pytest.raises(CheckpointError, match=r"model\.d_model is 128 there and 256 here"):
        checkpoints.restore(make_state(), run={"model": {"name": "tiny", "d_model": 256}})


def test_other_weights_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    here = {"models": {"main": {"weights": "b.gguf"}}}
    checkpoints.save(1, make_state(), {"run": here})
    assert checkpoints.restore(make_state(), run=here).step == 1
    checkpoints.save(2, make_state(), {"run": {"models": {"main": {"weights": "a.gguf"}}}})
    with pytest.raises(CheckpointError, match=r"models\.main\.weights is 'a\.gguf' there and 'b\.gguf' here"):
        checkpoints.restore(make_state(), run=here)


def test_other_shapes_are_refused_with_the_array(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    other = make_state()
    other["params"]["embed"] = jnp.zeros((64, 16))
    with pytest.raises(CheckpointError, match=r"params\.embed is \(\(64, 32\), 'float32'\) there"):
        checkpoints.restore(other)
    with pytest.raises(CheckpointError, match=r"params\.head is missing there"):
        checkpoints.restore({"params": {**make_state()["params"], "head": jnp.zeros(3)}}, partial=True)


def test_an_older_format_is_refused_by_number(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    monkeypatch.setattr("marl_jax.running.checkpoint.FORMAT", 0)
    save(checkpoints, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"has format 0, but this version reads format {FORMAT}"):
        checkpoints.restore(make_state())


def test_parameters_alone_and_without_a_pattern(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 4)
    checkpoints.close()
    reader = Checkpoints(tmp_path, read_only=True)
    restored = reader.restore({"params": make_state()["params"]}, partial=True).state
    assert_equal(restored, {"params": make_state(4)["params"]})
    plain = reader.restore().state
    assert isinstance(plain["params"]["embed"], np.ndarray)
    np.testing.assert_array_equal(plain["params"]["embed"], make_state(4)["params"]["embed"])


def test_eight_devices_to_one_and_back(tmp_path):
    mesh = jax.make_mesh((8,), ("fsdp",))
    split = NamedSharding(mesh, PartitionSpec("fsdp"))
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    whole = jax.random.normal(jax.random.key(0), (64, 32))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"w": jax.device_put(whole, split)}, {})
    for sharding in (one, split):
        w = checkpoints.restore({"w": jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding)}).state["w"]
        assert w.sharding == sharding
        np.testing.assert_array_equal(w, whole)


def test_processes_that_find_different_checkpoints_are_refused(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    monkeypatch.setattr("marl_jax.running.processes.gather", lambda steps: [steps, []])
    with pytest.raises(CheckpointError, match=r"finds the checkpoints \[1\], but another process finds others"):
        checkpoints.restore(make_state())


ROOMY = dict(f_bavail=1 << 30, f_frsize=4096)


def no_space(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.nightly_for("files", "at once")
@pytest.mark.parametrize("where", ["before", "files", "background", "at once"])
def test_a_full_disk_costs_one_checkpoint_and_nothing_else(tmp_path, monkeypatch, caplog, where):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    with monkeypatch.context() as full, caplog.at_level(logging.WARNING, "marl_jax"):
        if where == "before":
            full.setattr("os.statvfs", lambda _: types.SimpleNamespace(f_bavail=1, f_frsize=10, f_files=0))
        elif where == "files":
            full.setattr("os.statvfs", lambda _: types.SimpleNamespace(**ROOMY, f_files=1000, f_favail=9))
        elif where == "background":
            full.setattr("marl_jax.running.checksums.fingerprint", no_space)
        else:
            full.setattr(checkpoints._manager, "save", no_space)
        checkpoints.save(2, make_state(2), {"run": RUN})
        with pytest.raises(CheckpointError, match="step 2 could not be saved, and the newest checkpoint is of step 1"):
            checkpoints.finish(2)
    assert "the run continues" in caplog.text
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["1"]
    save(checkpoints, 3)
    checkpoints.finish(3)
    assert_equal(checkpoints.restore(make_state()).state, make_state(3))


def test_other_failures_are_not_swallowed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises((TypeError, ValueError)):
        checkpoints.save(1, make_state(), {"meta": object()})
        checkpoints.wait()


def test_seal_names_every_array_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    folder = tmp_path / "checkpoints" / "1"
    assert str(data_file(tmp_path, 1).relative_to(folder)) in json.loads((folder / "seal.json").read_text())


def test_a_file_that_cannot_be_read_is_not_sealed(tmp_path, monkeypatch):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "data").write_text("x")
    with monkeypatch.context() as broken, pytest.raises(OSError):
        broken.setattr("pathlib.Path.open", no_space)
        seals.write(tmp_path)
    seals.write(tmp_path)
    assert seals.damage(tmp_path) is None
