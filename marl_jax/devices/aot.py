"""Ahead-of-time compilation of programs, concurrently with other work.

    ahead = AotCompiler()
    update = Program(function, donate_argnums=(0,))
    update.compile_ahead(ahead, lambda: (state, samples))     # returns at once
    …
    update(state, samples)                                    # waits for the compiler if necessary

Tracing holds Python's lock, so one thread traces programs in the order in which they are submitted. The compiler
releases the lock and works on several programs at once. Calls go through `jax.jit`, which reuses the compiled program
for arguments of the same shapes, dtypes and shardings. Other arguments are compiled as usual, so ahead-of-time
compilation never changes results.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

from marl_jax.samples import Samples

log = logging.getLogger(__name__)

Shared = TypeVar("Shared")

WORTH_A_LINE = 5.0  # seconds of compilation that are worth a log message


class AotCompiler:
    """Threads that trace and compile programs in the order of submission."""

    def __init__(self, workers: int = 8):
        self._tracing, self._compiling = ThreadPoolExecutor(1, "trace"), ThreadPoolExecutor(workers, "compile")
        self._pending: set[Future] = set()

    def submit(self, jitted: Any, arguments: Callable[[], tuple]) -> Future:
        """Return a future of the compiled program.

        Args:
            jitted: A jitted function.
            arguments: Returns its arguments. It is called in the tracing thread, under the mesh of the caller.
        """
        compiled: Future = Future()
        self._pending.add(compiled)
        compiled.add_done_callback(self._pending.discard)
        self._tracing.submit(self._lower, compiled, jitted, arguments, jax.sharding.get_mesh())
        return compiled

    def wait(self) -> None:
        """Wait until all programs are compiled or have failed."""
        concurrent.futures.wait(list(self._pending))

    def close(self) -> None:
        """Cancel programs that have not been started.

        Waiting for their futures raises `CancelledError`.
        """
        for threads in (self._tracing, self._compiling):
            threads.shutdown(wait=False, cancel_futures=True)
        for compiled in list(self._pending):
            if compiled.cancel():
                compiled.set_running_or_notify_cancel()  # wakes up waiting threads

    def _lower(self, compiled, jitted, arguments, mesh):
        """Trace a program under the mesh and submit it to the compiler threads."""
        with _errors_to(compiled), contextlib.nullcontext() if mesh.empty else jax.set_mesh(mesh):
            lowered = jitted.lower(*arguments())
            self._compiling.submit(self._compile, compiled, lowered)

    def _compile(self, compiled, lowered):
        """Compile a lowered program and set the result of its future."""
        with _errors_to(compiled):
            program = lowered.compile()
            if not compiled.done():
                compiled.set_result(program)


class Program:
    """A jitted function that can be compiled ahead of time.

    Args:
        function: The function to jit.
        name: Name in log messages.
        **options: Options of `jax.jit`.
    """

    def __init__(self, function: Callable, name: str = "", **options: Any):
        self.jitted, self._name = jax.jit(function, **options), name or function.__name__
        self._pending: list[Future] = []

    def compile_ahead(self, ahead: AotCompiler, arguments: Callable[[], tuple]) -> Future:
        """Start compiling for some arguments.

        Args:
            ahead: The compiler.
            arguments: Returns the arguments; called when they are needed.
        """
        begin = time.monotonic()

        def report(done: Future) -> None:
            if not done.cancelled() and (seconds := time.monotonic() - begin) > WORTH_A_LINE:
                log.info("compiled %s after %.0f s", self._name, seconds)

        compiled = ahead.submit(self.jitted, arguments)
        compiled.add_done_callback(report)
        self._pending.append(compiled)
        return compiled

    def __call__(self, *args: Any) -> Any:
        """Wait for pending compilations and call the function."""
        self._wait()
        return self.jitted(*args)

    def bytes_needed(self, *args: Any) -> float:
        """Return the device memory of a call in addition to its arguments.

        The result is infinite if the compiler reports that the program does not fit, and 0 if the backend does not
        report memory.
        """
        self._wait()
        try:
            memory = self.jitted.lower(*args).compile().memory_analysis()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return math.inf
        if memory is None:  # not reported by every backend
            return 0.0
        return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes

    def _wait(self) -> None:
        """Wait for pending compilations; the following call raises their errors."""
        if self._pending:
            concurrent.futures.wait(self._pending)
            self._pending.clear()


class SharedPrograms:
    """Programs by name, which runs of the same shapes in one process share.

    A jitted function is compiled again for every new function object, even if it computes the same. Runs that differ
    only in values that their programs take as arguments, such as the seed, therefore use the same objects.
    """

    def __init__(self):
        self._programs: dict[Hashable, Any] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._programs

    def get(self, name: Hashable, make: Callable[[], Shared]) -> Shared:
        """Return the program of a name, which the first call makes."""
        if name not in self._programs:
            self._programs[name] = make()
        return self._programs[name]


@contextlib.contextmanager
def _errors_to(future: Future):
    """Set errors in this context as the exception of a future."""
    try:
        yield
    except BaseException as error:
        if not future.done():
            future.set_exception(error)


# Triton's matrix products were slower than cuBLAS for all decoding shapes tried, and about as fast in the update
# (docs/performance.md).
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


# Halves the compile time of programs that run once. Results are identical, unlike with level 0.
CPU_OPTIONS_ONCE = {"xla_backend_optimization_level": 1}


def compiler_options() -> dict | None:
    """Return options for `jax.jit` on this machine."""
    return compiler_options_for(jax.default_backend())


def compiler_options_for(platform: str) -> dict | None:
    """Return options for programs of a platform, which may be that of another machine."""
    return GPU_OPTIONS if platform == "gpu" else None


def compiler_options_once() -> dict | None:
    """Return options for `jax.jit` on this machine, for programs that run once."""
    return CPU_OPTIONS_ONCE if jax.default_backend() == "cpu" else None


class Recompiles:
    """Reports recompilations of the learner, which happen for samples of every new size."""

    def __init__(self):
        self._sizes = set()

    def look(self, step: int, samples: Samples, seconds: float) -> None:
        """Log if a step's samples have a new size, except in the first step.

        Args:
            step: Index of the step.
            samples: Its samples.
            seconds: Duration of its update, including compilation.
        """
        before = len(self._sizes)
        self._sizes.add((jax.tree.structure(samples), *(leaf.shape for leaf in jax.tree.leaves(samples))))
        if before and len(self._sizes) > before:
            log.info(
                "step %d: recompiled the learner for %d rows of %d tokens with %d completion tokens (%d sizes so far); "
                "the update took %.1f s", step, *samples.tokens.shape, samples.width, len(self._sizes), seconds,
            )  # fmt: skip
