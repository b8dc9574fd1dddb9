"""Programs that are compiled before they are called, beside other work.

    ahead = AotCompiler()
    update = Program(function, donate_argnums=(0,))
    update.compile_ahead(ahead, lambda: (state, samples))     # returns at once
    …
    update(state, samples)                                    # waits for the compiler if it has not finished

Tracing holds Python's lock, so one thread traces, in the order in which programs are wanted; the compiler does not, so
it works at several programs at once. A call is that of `jax.jit` and finds what was compiled for arguments of the same
shapes, types and shardings; with other arguments it compiles as it always does, so nothing but time depends on this.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from marl_jax.samples import Samples

log = logging.getLogger(__name__)

WORTH_A_LINE = 5.0  # seconds


class AotCompiler:
    """Threads that trace and compile, first come, first served."""

    def __init__(self, workers: int = 8):
        self._tracing, self._compiling = ThreadPoolExecutor(1, "trace"), ThreadPoolExecutor(workers, "compile")
        self._pending: set[Future] = set()

    def submit(self, jitted: Any, arguments: Callable[[], tuple]) -> Future:
        """The compiled program, when it is there; `arguments` are asked for when it is traced, under today's mesh."""
        compiled: Future = Future()
        self._pending.add(compiled)
        compiled.add_done_callback(self._pending.discard)
        self._tracing.submit(self._lower, compiled, jitted, arguments, jax.sharding.get_mesh())
        return compiled

    def wait(self) -> None:
        """Returns when everything is compiled, or has failed."""
        concurrent.futures.wait(list(self._pending))

    def close(self) -> None:
        """Gives up what has not been begun; whoever waits for it gets a `CancelledError`, or compiles it."""
        for threads in (self._tracing, self._compiling):
            threads.shutdown(wait=False, cancel_futures=True)
        for compiled in list(self._pending):
            if compiled.cancel():
                compiled.set_running_or_notify_cancel()  # wakes who waits for it

    def _lower(self, compiled, jitted, arguments, mesh):
        with _errors_to(compiled), contextlib.nullcontext() if mesh.empty else jax.set_mesh(mesh):
            lowered = jitted.lower(*arguments())
            self._compiling.submit(self._compile, compiled, lowered)

    def _compile(self, compiled, lowered):
        with _errors_to(compiled):
            program = lowered.compile()
            if not compiled.done():
                compiled.set_result(program)


class Program:
    """A jitted function that can be compiled ahead; `compiler_options` are those of `jax.jit`."""

    def __init__(self, function: Callable, name: str = "", **options: Any):
        self.jitted, self._name = jax.jit(function, **options), name or function.__name__
        self._pending: list[Future] = []

    def compile_ahead(self, ahead: AotCompiler, arguments: Callable[[], tuple]) -> Future:
        """Begins to compile for these arguments, which are asked for when they are needed."""
        begin = time.monotonic()

        def report(done: Future) -> None:
            if not done.cancelled() and (seconds := time.monotonic() - begin) > WORTH_A_LINE:
                log.info("compiled %s after %.0f s", self._name, seconds)

        compiled = ahead.submit(self.jitted, arguments)
        compiled.add_done_callback(report)
        self._pending.append(compiled)
        return compiled

    def __call__(self, *args: Any) -> Any:
        self._wait()
        return self.jitted(*args)

    def bytes_needed(self, *args: Any) -> float:
        """Memory of a device that a call takes beside its arguments; infinite where the compiler finds it too much."""
        self._wait()
        try:
            memory = self.jitted.lower(*args).compile().memory_analysis()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return math.inf
        if memory is None:  # not every compiler says
            return 0.0
        return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes

    def _wait(self) -> None:
        """Until what was begun is compiled; an error of the compiler is raised again by the call."""
        if self._pending:
            concurrent.futures.wait(self._pending)
            self._pending.clear()


@contextlib.contextmanager
def _errors_to(future: Future):
    """An error within is that of the future."""
    try:
        yield
    except BaseException as error:
        if not future.done():
            future.set_exception(error)


# Triton's matrix products were slower than cuBLAS at every decoding shape tried; in the update it makes little
# difference (docs/performance.md).
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


# Half the time to compile, for programs that run once. Values are the same, which they are not at level 0.
CPU_OPTIONS_ONCE = {"xla_backend_optimization_level": 1}


def compiler_options() -> dict | None:
    """Options for `jax.jit` on this machine."""
    return compiler_options_for(jax.default_backend())


def compiler_options_for(platform: str) -> dict | None:
    """Options for programs of a platform, which may be another machine's."""
    return GPU_OPTIONS if platform == "gpu" else None


def compiler_options_once() -> dict | None:
    """Options for `jax.jit` on this machine, for programs that run once."""
    return CPU_OPTIONS_ONCE if jax.default_backend() == "cpu" else None


class Recompiles:
    """Reports when the learner is compiled again, which JAX does for samples of every new size."""

    def __init__(self):
        self._sizes = set()

    def look(self, step: int, samples: Samples, seconds: float) -> None:
        """Logs a line if a step had samples of a size that no step before it had, but the first.

        seconds  of its update, compiling included
        """
        before = len(self._sizes)
        self._sizes.add((jax.tree.structure(samples), *(leaf.shape for leaf in jax.tree.leaves(samples))))
        if before and len(self._sizes) > before:
            log.info(
                "step %d: the learner was compiled again, for %d rows of %d tokens with answers of %d (sizes so far: "
                "%d); the update took %.1f s", step, *samples.tokens.shape, samples.width, len(self._sizes), seconds,
            )  # fmt: skip
