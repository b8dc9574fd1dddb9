"""Worker process that runs verifiers: `python -m envs.tasks.worker`.

Requests and responses are JSON objects, one per line.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import operator
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1

MEMORY = 4 << 30
"""Limit of the address space in bytes; a call that needs more raises a MemoryError."""


def main() -> None:
    """Process requests until the input ends.

    Anything that functions print goes to standard error.
    """
    if sys.platform == "linux":  # even a verifier that hangs ends with the run that started it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(request: dict) -> dict:
    try:
        module, name = request["function"].split(":")
        function = operator.attrgetter(name)(importlib.import_module(module))
        result = None if request.get("import_only") else function(*request["args"])
        json.dumps(result)
    except BaseException as error:  # the caller handles everything, including sys.exit
        return {"error": f"{type(error).__name__}: {error}"}
    return {"result": result}


if __name__ == "__main__":
    main()
