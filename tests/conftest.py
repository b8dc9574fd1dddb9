"""Shared by all tests: eight virtual CPU devices, quick compilation, access to the optional shared data."""

import fnmatch
import gc
import importlib.metadata
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and compute little: optimization is reduced, and tests, workers and subprocesses of one run share a
# compilation cache.
ROUGH = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if importlib.metadata.version("jaxlib") < "0.11":  # later versions reject the flag
    # These halve the compilation time; splitting code generation needs spare cores.
    ROUGH += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if "MARL_JAX_TESTS" not in os.environ:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {ROUGH}"
    os.environ["MARL_JAX_TESTS"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="marl_jax-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.15"

import hypothesis
import pytest

# Property tests use the same examples in every run, so a new failure comes from a change; `make soak` uses others.
hypothesis.settings.register_profile("marl_jax", derandomize="MARL_JAX_SOAK" not in os.environ, deadline=None)
hypothesis.settings.load_profile("marl_jax")


def examples(n: int) -> int:
    """Return the number of examples of a property test: n in `make soak`, a quarter of it otherwise."""
    return n if "MARL_JAX_SOAK" in os.environ else -(-n // 4)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by `-m`
def pytest_collection_modifyitems(items):
    """Apply `nightly_for`, and start the files marked `long` first so that no worker is left alone with one."""
    for item in items:
        for marker in item.iter_markers("nightly_for"):
            if any(fnmatch.fnmatchcase(item.callspec.id, pattern) for pattern in marker.args):
                item.add_marker(pytest.mark.nightly)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def own_console():
    """Undo after the test what `marl_jax.running.console.set_up` changes."""
    loggers = [logging.getLogger(name) for name in (None, "marl_jax", "envs.games")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    hook = sys.excepthook
    yield
    sys.excepthook = hook
    for logger, handlers, level in before:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """Keep every compiled program of the module, so that a second run of a kind need not compile."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def use(settings):
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    use(dict(zip(names, (str(tmp_path_factory.mktemp("compiled")), 0), strict=True)))
    yield
    use(before)


@pytest.fixture(scope="module")
def quick_compilation():
    """Compile without most optimizations, for programs that run for milliseconds."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def pytest_collection_finish():
    """Run the cyclic garbage collector less often: imports stay, and traced programs live long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_unconfigure(config):
    """Delete the compilation cache at the end of the main process."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["MARL_JAX_TESTS"], ignore_errors=True)


def nightly_cases(cases, *rare):
    """Mark the parameters in `rare`, which `make nightly` runs and `make test` does not."""
    assert set(rare) <= set(cases)
    marked = {
        case: pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.nightly) for case in rare
    }
    return [marked.get(case, case) for case in cases]


SHARED = Path(os.environ.get("MARL_JAX_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def shared_data(name: str) -> Path:
    """Return the path of a shared data file; skip the test if it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"shared data file {path} is absent (set MARL_JAX_SHARED_DATA to the folder that has it)")
    return path


def framework_python(name: str, package: str) -> str:
    """Return the Python of an agent framework, which `make nightly` installs; skip the test if it is missing."""
    own = Path(os.environ.get("MARL_JAX_FRAMEWORKS", Path(sys.prefix) / "frameworks")) / name / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    look = f"import importlib.util as u, sys; sys.exit(not u.find_spec({package!r}))"
    if subprocess.run([python, "-c", look]).returncode:
        pytest.skip(f"{package} is not installed (make nightly installs it in {own.parents[1]})")
    return python


def published(name: str) -> Path:
    """Return the path of a model's weights; SmolLM2-135M is fetched, others skip the test if absent."""
    from models import fetch

    try:
        place = fetch.ensure(name) if name == "smollm2-135m" else fetch.locate(name)
    except fetch.FetchError as error:
        pytest.skip(f"the weights of {name} are not here and could not be fetched: {error}")
    if place is None:
        pytest.skip(f"no weights of {name} in {fetch.folder(name)}")
    return place
