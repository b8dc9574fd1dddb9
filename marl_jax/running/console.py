"""Terminal output of a run: log lines and a progress bar, from process 0 only."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from marl_jax.errors import RunError

log = logging.getLogger(__name__)

OURS = ("marl_jax", "envs.games")
"""Loggers whose messages a run shows."""

CONFIGURED = bool(logging.getLogger().handlers)
"""Whether the program had configured logging when it first used this module. Libraries may do so later."""


class _ThroughBar(logging.Handler):
    """A log handler that writes above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class _RunLog(logging.FileHandler):
    """A log handler that writes to a file.

    A full disk loses lines and is reported once on the terminal.
    """

    reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.reported:
            self.reported = True
            tqdm.write(f"{self.baseFilename}: {error.strerror}; lines are lost until there is space", file=sys.stderr)


def _worth_reading(record: logging.LogRecord) -> bool:
    # JAX logs a traceback of errors raised inside compiled programs; a RunError is reported in one line.
    """Return whether to show a log record."""
    if record.exc_info and isinstance(record.exc_info[1], RunError):
        return False
    # Orbax and asyncio log long tracebacks of errors that `checkpoint.py` handles and reports in one line.
    return "orbax" not in (record.getMessage() if record.name == "asyncio" else record.pathname)


def _only_ours(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an uncaught exception, unless it is a known consequence of a full disk.

    Writes that a full disk interrupts report to an event loop that Orbax has closed, each with a traceback.
    `checkpoint.py` has already reported the error in one line.
    """
    if not (kind is RuntimeError and str(error) == "Event loop is closed"):
        sys.__excepthook__(kind, error, traceback)


def _with_format(handler: logging.Handler) -> logging.Handler:
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    handler.addFilter(_worth_reading)
    return handler


def set_up(workdir: Path | None, verbose: bool = False, process: int = 0) -> None:
    """Send log lines to the terminal and, with a folder, to its `run.log`.

    Processes other than 0 only log warnings.
    """
    level = logging.WARNING if process else (logging.DEBUG if verbose else logging.INFO)
    sys.excepthook = _only_ours
    root = logging.getLogger()
    root.handlers[:] = _handlers(None if process else workdir)
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def attached(workdir: Path | None) -> Iterator[None]:
    """Show the log lines of the project while a run is active.

    For runs that are started from Python. The terminal shows the lines unless the program has configured logging
    itself. With a folder, they also go to its `run.log`. The settings of other loggers are not changed.
    """
    handlers = _handlers(workdir)[1 if CONFIGURED else 0 :]
    loggers = [logging.getLogger(name) for name in OURS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logger.level or logging.INFO)
        logger.propagate = CONFIGURED
        for handler in handlers:
            logger.addHandler(handler)
    try:
        with quiet():
            yield
    finally:
        for logger, (level, logger.propagate) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            for handler in handlers:
                logger.removeHandler(handler)
        for handler in handlers:
            handler.close()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide log lines of Orbax, whose errors `checkpoint.py` reports."""
    absl = logging.getLogger("absl")
    nested = _worth_reading in absl.filters
    absl.addFilter(_worth_reading)
    try:
        yield
    finally:
        if not nested:
            absl.removeFilter(_worth_reading)


def _handlers(workdir: Path | None) -> list[logging.Handler]:
    """Return handlers for the terminal and, with a folder, for its `run.log`."""
    handlers: list[logging.Handler] = [_ThroughBar()]
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
        handlers.append(_RunLog(workdir / "run.log"))
    return [_with_format(handler) for handler in handlers]


@contextlib.contextmanager
def also_log_to(workdir: Path) -> Iterator[None]:
    """Send log lines to the `run.log` of another folder, too."""
    workdir.mkdir(parents=True, exist_ok=True)
    handler = _with_format(_RunLog(workdir / "run.log"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def note(level: int, message: str, *values: object) -> None:
    """Write a line to `run.log` only, because the terminal already shows it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _RunLog):
            handler.handle(logging.LogRecord(log.name, level, __file__, 0, message, values, None))


BAR_FORMAT = "{percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""The bar keeps its width; metrics after it are cut off at the end of the line."""


class Progress:
    """A progress bar with the most important metrics, or periodic log lines without a terminal.

    Both show the remaining time. In log lines it is estimated without the first step, which compiles.
    """

    def __init__(self, steps: int, start: int = 0, enabled: bool = True, every_seconds: float = 15.0):
        self._steps, self._every, self._last = steps, every_seconds, -float("inf")
        self._enabled = enabled
        terminal = enabled and sys.stderr.isatty()
        self._begun: tuple[int, float] | None = None  # the first step, and when it ended
        self._bar = (
            tqdm(total=steps, initial=start, unit="step", dynamic_ncols=True, bar_format=BAR_FORMAT)
            if terminal
            else None
        )
        if self._bar is not None:  # tqdm uses the wall clock, which may be set back
            self._bar._time = time.monotonic  # pyright: ignore[reportAttributeAccessIssue] (not in the stub)
            self._bar.start_t = self._bar.last_print_t = time.monotonic()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move to `step` and show the metrics, in their order."""
        words = {name: short(value) for name, value in metrics.items()}
        if self._bar is not None:
            self._bar.set_postfix(words, refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._enabled and (time.monotonic() - self._last >= self._every or step == self._steps):
            self._last = time.monotonic()
            shown = "  ".join(f"{k} {v}" for k, v in words.items())
            log.info("step %d/%d%s  %s", step, self._steps, self._remaining(step), shown)
        self._begun = self._begun or (step, time.monotonic())

    def _remaining(self, step: int) -> str:
        """Return the remaining time in words, or "" after the first and the last step."""
        if self._begun is None or step in (self._begun[0], self._steps):
            return ""
        first, then = self._begun
        seconds = (self._steps - step) * (time.monotonic() - then) / (step - first)
        return f", {tqdm.format_interval(seconds)} left"

    def close(self) -> None:
        """Close the bar and leave it on the terminal."""
        if self._bar is not None:
            self._bar.close()


def short(value: float) -> str:
    """Format a number in few characters: 0.123, 12.3, 12.3k, 1.2e-05."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.1f}M"
    if size >= 1e4 or (size >= 1e3 and not float(value).is_integer()):
        return f"{value / 1e3:.1f}k"
    if size and size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
