"""Graceful stop: a first signal sets a flag, and a second has its usual effect.

The signals are SIGTERM, SIGINT and SIGHUP. Only the main thread of a process can receive them.
"""

from __future__ import annotations

import logging
import signal
import threading

log = logging.getLogger(__name__)


class GracefulStop:
    """A context manager in which `stop.asked` is set by a signal to stop.

    with GracefulStop() as stop:
        while step < steps and not stop.asked:
            ...
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self):
        self.asked = False
        self.name = ""

    def __enter__(self) -> GracefulStop:
        self._before = {}
        if threading.current_thread() is not threading.main_thread():
            return self
        # Under nohup, SIGHUP is ignored.
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        wanted = [number for number in self.SIGNALS if number != signal.SIGHUP or not ignored]
        self._before = {number: signal.signal(number, self._receive) for number in wanted}
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            self._restore(number, handler)

    @staticmethod
    def _restore(number: int, handler) -> None:
        # None: a handler that was not set from Python cannot be restored.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _frame) -> None:
        if self.asked:
            self._restore(number, self._before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        self.asked = True
        self.name = signal.Signals(number).name
        log.warning("%s: stopping after this step with a checkpoint; a second signal stops immediately", self.name)
