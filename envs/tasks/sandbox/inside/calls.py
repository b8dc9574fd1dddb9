"""Calls into a program that has been loaded: each in a fork of it, its value on a pipe.

All of this runs in the program's own process, which it may have changed in any way. So what arrives on the pipe is the
program's word, and nothing more: the sandbox compares it with what was expected, which is not known here.
"""

import json
import os
import sys

from . import values

NONCE = 32  # bytes before the calls
MAX_VALUE = 256 << 10


class Runner:
    """Functions of `os` are held from before the program was loaded."""

    def __init__(self, source: int, results: int):
        self._source, self._results = source, results
        self._fork, self._wait, self._exit = os.fork, os.waitpid, os._exit
        self._write, self._read, self._size = os.write, os.pread, os.fstat
        self._dumps, self._loads, self._encode = json.dumps, json.loads, values.encode

    def loading_failed(self, failure):
        """Report that there is nothing to call."""
        self._send("load", "error", _said(failure))

    def run(self, names: dict) -> None:
        """Evaluate every call in a fork, one after the other."""
        items = self._loads(self._read(self._source, self._size(self._source).st_size, NONCE))
        for index, item in enumerate(items):
            sys.stdout.flush()
            sys.stderr.flush()
            child = self._fork()
            if not child:
                try:
                    self._one(index, item, names)
                finally:
                    self._exit(0)
            _, status = self._wait(child, 0)
            self._send(index, "ended", os.waitstatus_to_exitcode(status))

    def _one(self, index, item, names):
        try:
            if item["kind"] == "value":
                value = self._encode(eval(compile(item["source"], "call", "eval"), names))
                if len(self._dumps(value)) > MAX_VALUE:
                    value = ["o", "a value too large to report"]
                self._send(index, "value", value)
            else:
                exec(compile(item["source"], "test", "exec"), names)
                # Read only now: a program that exits before its test has passed does not have it.
                self._send(index, "passed", self._read(self._source, NONCE, 0).decode())
        except BaseException as failure:
            self._send(index, "error", _said(failure))

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
