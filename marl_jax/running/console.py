"""What a person sees while a run continues: log lines and a progress bar, from process 0 only."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from marl_jax.errors import RunError

log = logging.getLogger(__name__)


class _ThroughBar(logging.Handler):
    """Writes log lines above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class _RunLog(logging.FileHandler):
    """Writes log lines to a file; a full disk costs lines, and is reported once on the terminal."""

    told = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.told:
            self.told = True
            tqdm.write(f"{self.baseFilename}: {error.strerror}; lines are lost until there is room", file=sys.stderr)


def _worth_reading(record: logging.LogRecord) -> bool:
    # JAX logs a traceback of what is raised inside of a compiled program; one of ours is reported in a line.
    if record.exc_info and isinstance(record.exc_info[1], RunError):
        return False
    # Orbax, and asyncio for it, log pages of tracebacks for what `checkpoint.py` handles and says in one line.
    return "orbax" not in (record.getMessage() if record.name == "asyncio" else record.pathname)


def _only_ours(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """What is written about an exception that nobody caught.

    Writes that a full disk has cut short report back to an event loop that Orbax has closed, each with a traceback;
    `checkpoint.py` has said in a line what happened.
    """
    if not (kind is RuntimeError and str(error) == "Event loop is closed"):
        sys.__excepthook__(kind, error, traceback)


def set_up(workdir: Path | None, verbose: bool = False, process: int = 0) -> None:
    """Log lines to the terminal and, with a folder, to `run.log` in it; other processes than 0 tell warnings only."""
    level = logging.WARNING if process else (logging.DEBUG if verbose else logging.INFO)
    handlers: list[logging.Handler] = [_ThroughBar()]
    if workdir is not None and process == 0:
        workdir.mkdir(parents=True, exist_ok=True)
        handlers.append(_RunLog(workdir / "run.log"))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
        handler.addFilter(_worth_reading)
    sys.excepthook = _only_ours
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(logging.WARNING)
    for name in ("marl_jax", "envs.games"):
        logging.getLogger(name).setLevel(level)


def note(level: int, message: str, *values: object) -> None:
    """A line for `run.log` alone, where there is one: the terminal has been told already."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _RunLog):
            handler.handle(logging.LogRecord(log.name, level, __file__, 0, message, values, None))


class Progress:
    """A bar with the metrics that matter; where there is no terminal, a log line now and then instead."""

    def __init__(self, steps: int, start: int = 0, enabled: bool = True, every_seconds: float = 15.0):
        self._steps, self._every, self._last = steps, every_seconds, -float("inf")
        self._enabled = enabled
        terminal = enabled and sys.stderr.isatty()
        self._bar = tqdm(total=steps, initial=start, unit="step", dynamic_ncols=True) if terminal else None
        if self._bar is not None:  # tqdm asks the clock on the wall, which may be set back
            self._bar._time = time.monotonic  # pyright: ignore[reportAttributeAccessIssue] (not in the stub)
            self._bar.start_t = self._bar.last_print_t = time.monotonic()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Moves to `step` and shows the metrics, in their order."""
        words = {name: short(value) for name, value in metrics.items()}
        if self._bar is not None:
            self._bar.set_postfix(words, refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._enabled and (time.monotonic() - self._last >= self._every or step == self._steps):
            self._last = time.monotonic()
            log.info("step %d/%d  %s", step, self._steps, "  ".join(f"{k} {v}" for k, v in words.items()))

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def short(value: float) -> str:
    """A number in few characters: 0.123, 12.3, 12.3k, 1.2e-05."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.1f}M"
    if size >= 1e4 or (size >= 1e3 and not float(value).is_integer()):
        return f"{value / 1e3:.1f}k"
    if size and size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
