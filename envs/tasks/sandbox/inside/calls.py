"""Calls into a loaded program, with their values written to a pipe.

Each call runs in a fork of the loaded program. A program that cannot keep state between calls (`stateless.py`) makes
its calls one after another in its own process, with the same results. It forks as soon as the memory use of calls might
affect each other.

All of this runs in the program's process, which the program may have changed in any way. The data on the pipe is
therefore untrusted. The sandbox compares it with the expected values, which are not known here.
"""

import gc
import json
import os
import resource
import sys

from . import stateless, values

NONCE = 32  # bytes before the request
MAX_VALUE = 256 << 10
MAX_GROWTH_KB = 16 << 10  # growth of memory after which calls are made in forks


class Runner:
    """The calls of a request.

    A request has `items`; `alone`, the number of leading items that are evaluated in any case; and `forks`, which
    forces a fork for each call. An item has one of these kinds: "value", an expression whose value is reported; "test",
    statements that have to run to their end; "builds", a text that is only checked for valid syntax. References to
    functions are taken before the program is loaded.
    """

    def __init__(self, source: int, results: int):
        self._source, self._results = source, results
        self._fork, self._wait, self._exit = os.fork, os.waitpid, os._exit
        self._write, self._read, self._size = os.write, os.pread, os.fstat
        self._dumps, self._encode, self._compile = json.dumps, values.encode, compile
        self._peak = lambda usage=resource.getrusage, who=resource.RUSAGE_SELF: usage(who).ru_maxrss
        self._request = json.loads(self._read(source, self._size(source).st_size, NONCE))
        self._together = False

    def look(self, text: str, name: str) -> None:
        """Decide whether calls of a program, loaded as module `name`, run in its process."""
        calls = [item["source"] for item in self._request["items"] if item["kind"] == "value"]
        gc.disable()  # syntax trees are large and have no cycles
        self._together = not self._request["forks"] and stateless.is_stateless(text, calls, name)
        gc.enable()

    def loading_failed(self, failure):
        """Report that the program could not be loaded."""
        self._send("load", "error", _said(failure))
        self._builds()

    def run(self, names: dict) -> None:
        """Make the calls one after another."""
        items, failed = self._request["items"], not self._together
        self._send("load", "together" if self._together else "forks", None)
        if not self._together:
            items = items[: self._request["alone"]]
        most = self._peak() + MAX_GROWTH_KB
        for index, item in enumerate(items):
            if item["kind"] == "builds":
                continue
            if self._together and item["kind"] == "value":
                outcome = self._one(index, item, names, retry=True)
                failed = failed or outcome != "value"
                self._together = outcome != "memory" and self._peak() < most
                if outcome != "memory":
                    continue
            sys.stdout.flush()
            sys.stderr.flush()
            child = self._fork()
            if not child:
                try:
                    self._one(index, item, names)  # same depth as above, so recursion ends at the same depth
                finally:
                    self._exit(0)
            _, status = self._wait(child, 0)
            self._send(index, "ended", os.waitstatus_to_exitcode(status))
        if failed:
            self._builds()

    def _one(self, index, item, names, retry=False):
        """Evaluate an item and return the kind of record that was sent.

        The result is "memory" if no record was sent because the call can be repeated in a fork.
        """
        try:
            if item["kind"] == "value":
                value = self._encode(eval(compile(item["source"], "call", "eval"), names))
                if len(self._dumps(value)) > MAX_VALUE:
                    value = ["o", "a value too large to report"]
                self._send(index, "value", value)
                return "value"
            exec(compile(item["source"], "test", "exec"), names)
            # Read only now, so that a program that exits before its test has passed does not know the nonce.
            self._send(index, "passed", self._read(self._source, NONCE, 0).decode())
            return "passed"
        except BaseException as failure:
            if retry and isinstance(failure, MemoryError):
                return "memory"
            self._send(index, "error", _said(failure))
            return "error"

    def _builds(self):
        """Report which texts are valid Python.

        The program itself is one of these texts. A program that changed this process to fake the answer must be valid
        Python.
        """
        for index, item in enumerate(self._request["items"]):
            if item["kind"] == "builds":
                try:
                    self._compile(item["source"], "program.py", "exec")
                    built = 1
                except BaseException:
                    built = 0
                self._send(index, "value", ["b", built])

    def _send(self, index, kind, what):
        line = (self._dumps([index, kind, what]) + "\n").encode()
        while line:
            line = line[self._write(self._results, line) :]


def _said(failure):
    """Format an exception as `ValueError: text`, cut to 500 characters."""
    try:
        return f"{type(failure).__name__}: {failure}"[:500]
    except BaseException:
        return "an exception"
