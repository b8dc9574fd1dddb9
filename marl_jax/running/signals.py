"""A stop that is asked for politely: the first SIGTERM or SIGINT sets a flag, the second ends the process."""

from __future__ import annotations

import logging
import signal

log = logging.getLogger(__name__)


class GracefulStop:
    """While in its scope, `stop.asked` tells whether the loop should save and leave.

        with GracefulStop() as stop:
            while step < steps and not stop.asked:
                ...
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        self.asked = False
        self.name = ""

    def __enter__(self) -> GracefulStop:
        self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            # None: a handler that was not set from Python cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _frame) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        self.asked = True
        self.name = signal.Signals(number).name
        log.warning("%s: saving a checkpoint after this step, then stopping; once more ends at once", self.name)
