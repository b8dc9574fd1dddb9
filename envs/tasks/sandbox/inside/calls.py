"""Calls into a program that has been loaded, their values on a pipe.

Each call is made in a fork of the loaded program. A program that cannot keep anything from one call to the next
(`stateless.py`) makes its calls one after the other in its own process, with the same results, and forks as soon as
calls might disturb each other by the memory they use.

All of this runs in the program's own process, which it may have changed in any way. So what arrives on the pipe is the
program's word, and nothing more: the sandbox compares it with what was expected, which is not known here.
"""

import gc
import json
import os
import resource
import sys

from . import stateless, values

NONCE = 32  # bytes before the request
MAX_VALUE = 256 << 10
MAX_GROWTH_KB = 16 << 10  # of memory, after which no other call is made in the same process


class Runner:
    """Makes the calls of a request: `items`, of which the first `alone` are made whatever the program does, `forks`.

    Kinds of items: "value", an expression whose value is reported; "test", statements that have to run to their end;
    "builds", a text of which is only reported whether it is Python. Functions are held from before the program was
    loaded.
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
        """Decide, before a program is loaded as the module `name`, whether its calls are made in its own process."""
        calls = [item["source"] for item in self._request["items"] if item["kind"] == "value"]
        gc.disable()  # trees are large and have no cycles
        self._together = not self._request["forks"] and stateless.is_stateless(text, calls, name)
        gc.enable()

    def loading_failed(self, failure):
        """Report that there is nothing to call."""
        self._send("load", "error", _said(failure))
        self._builds()

    def run(self, names: dict) -> None:
        """Make the calls, one after the other."""
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
                    self._one(index, item, names)  # as many frames deep as above: recursion ends at the same depth
                finally:
                    self._exit(0)
            _, status = self._wait(child, 0)
            self._send(index, "ended", os.waitstatus_to_exitcode(status))
        if failed:
            self._builds()

    def _one(self, index, item, names, retry=False):
        """The kind of the record that was sent; "memory" if none was, since the call may be made again in a fork."""
        try:
            if item["kind"] == "value":
                value = self._encode(eval(compile(item["source"], "call", "eval"), names))
                if len(self._dumps(value)) > MAX_VALUE:
                    value = ["o", "a value too large to report"]
                self._send(index, "value", value)
                return "value"
            exec(compile(item["source"], "test", "exec"), names)
            # Read only now: a program that exits before its test has passed does not have it.
            self._send(index, "passed", self._read(self._source, NONCE, 0).decode())
            return "passed"
        except BaseException as failure:
            if retry and isinstance(failure, MemoryError):
                return "memory"
            self._send(index, "error", _said(failure))
            return "error"

    def _builds(self):
        """Report which texts are Python. The program is one of them: had it changed this process, it would be."""
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
    """`ValueError: text`, cut."""
    try:
        return f"{type(failure).__name__}: {failure}"[:500]
    except BaseException:
        return "an exception"
