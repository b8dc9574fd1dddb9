"""Ahead-of-time compilation: calls use the compiled programs, and results do not change."""

import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from marl_jax.devices.aot import AotCompiler, Program
from marl_jax.setup.train_programs import compile_ahead

COMPILE = "/jax/core/compile/backend_compile_duration"


class Compiled:
    """Count the programs that are compiled in this context, by name."""

    def __enter__(self):
        self.names = []
        jax.monitoring.register_event_duration_secs_listener(self._count)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._count)

    def _count(self, event, _, **about):
        if event == COMPILE:
            self.names.append(about.get("fun_name", "").removeprefix("jit(").removesuffix(")"))


@pytest.fixture
def ahead():
    threads = AotCompiler(workers=2)
    yield threads
    threads.close()


def test_a_call_finds_the_program_whatever_mesh_it_is_for(ahead):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def twice(x, key, step):
        return jax.lax.with_sharding_constraint(2 * x + step, PartitionSpec("data")), jax.random.fold_in(key, step)

    program = Program(twice, donate_argnums=(0,), out_shardings=(rows, None))
    key = jax.random.key(0)
    with Compiled() as compiled, jax.set_mesh(mesh):
        shape = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=rows)
        program.compile_ahead(ahead, lambda: (shape, key, 0)).result()
        found = program(jax.device_put(np.arange(4, dtype=np.float32), rows), key, 0)[0]
        found = program(found, key, 1)[0]  # results can be passed in again, and so can another number
        np.testing.assert_array_equal(found, [1, 5, 9, 13])
        assert compiled.names.count("twice") == 1
        program(jax.device_put(np.ones(8, np.float32), rows), key, 0)  # another shape is compiled on demand
    assert compiled.names.count("twice") == 2


def test_a_call_waits_for_the_compiler_and_an_error_is_the_calls(ahead):
    go = threading.Event()
    program = Program(lambda x: x.reshape(3, 2), "a shape")

    def arguments():
        go.wait()
        return (np.zeros(5),)

    pending = program.compile_ahead(ahead, arguments)
    caller = threading.Thread(target=lambda: found.append(program(np.zeros(6))))
    found = []
    caller.start()
    caller.join(0.2)
    assert caller.is_alive() and not found
    go.set()
    caller.join(60)
    assert found[0].shape == (3, 2) and isinstance(pending.exception(), TypeError)
    with pytest.raises(TypeError, match="reshape"):
        program(np.zeros(5))


def test_who_waits_for_what_is_given_up_does_not_wait_for_ever():
    threads, go = AotCompiler(), threading.Event()
    first, second = Program(lambda x: x + 1), Program(lambda x: x + 2)
    first.compile_ahead(threads, lambda: go.wait() and (1,))
    pending = second.compile_ahead(threads, lambda: (1,))
    threads.close()
    go.set()
    assert pending.cancelled() and second(1) == 3 and first(1) == 2


@pytest.mark.parametrize(
    ("backend", "devices", "order"),
    [("gpu", 1, ["update", "play"]), ("gpu", 2, ["play", "update"]), ("cpu", 1, ["play", "update"])],
)
def test_a_run_begins_with_the_longest_program_where_it_waits_for_all(ahead, monkeypatch, backend, devices, order):
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    rows, begun = NamedSharding(mesh, PartitionSpec("data")), []

    class Recorded(Program):
        def compile_ahead(self, threads, arguments):
            begun.append(self.jitted.__name__)
            return super().compile_ahead(threads, arguments)

    def play(weights, state, key):
        return jnp.broadcast_to(weights + state, 4), key

    def update(weights, samples, key, step, lr_scale, lr):
        return weights + lr * lr_scale * samples.sum() + step

    programs = Recorded(play, out_shardings=(rows, None)), Recorded(update)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with Compiled() as compiled:
        compile_ahead(
            SimpleNamespace(mesh=mesh, sample_mesh=mesh), ahead, None, *programs,
            (jnp.ones(()), jnp.ones(())), jnp.ones(()), jax.random.key(0), 0, 1e-3,
        )  # fmt: skip
        ahead.wait()
    assert begun == order
    assert {"play", "update"} <= set(compiled.names)
