"""Native programs in the sandbox, such as a compiler and a simulator.

A small Python program of ours starts them in the place of an untrusted one. All layers and limits of the sandbox are
inherited by its children. The commands never pass through a shell.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from envs.tasks.sandbox.results import Limits, SandboxResult

SIGSYS, SIGXCPU, SIGXFSZ = 31, 24, 25
_LIMITS = {-SIGXCPU: "cpu", -SIGXFSZ: "files"}

_PROGRAM = """
import json, subprocess, sys, time

job = json.load(sys.stdin)
for name, text in job["files"].items():
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(text)

def read(file):
    size, most = file.tell(), job["most"]
    file.seek(0)
    if size <= most:
        return file.read().decode("utf-8", "replace")
    start = file.read(most // 2)
    file.seek(size - most // 2)
    return (start + b"\\n...\\n" + file.read()).decode("utf-8", "replace")

done = []
for number, command in enumerate(job["commands"]):
    started = time.monotonic()
    with open(f".{number}.out", "wb+") as out, open(f".{number}.err", "wb+") as err:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={}).returncode
        out.seek(0, 2), err.seek(0, 2)
        done.append([code, read(out), read(err), time.monotonic() - started])
    if code:
        break
print(json.dumps(done))
"""


def program(
    commands: Sequence[Sequence[str]], files: Mapping[str, str], limits: Limits, allowed: Sequence[str]
) -> tuple[str, str]:
    """Return the Python program that runs the commands, and its standard input.

    Raises:
        ValueError: A command is not allowed, or the name of a file is not a plain one.
    """
    for command in commands:
        if not any(command[0] == path or command[0].startswith(f"{path}/") for path in allowed):
            raise ValueError(f"command is {command[0]!r}, but must be one of: {', '.join(allowed) or 'none'}")
    for name in files:
        if os.path.basename(name) != name or name.startswith("."):
            raise ValueError(f"file is {name!r}, but must be a plain name")
    job = {"commands": commands, "files": files, "most": limits.output_kb * 1024 // 8}
    return _PROGRAM, json.dumps(job)


def results(whole: SandboxResult) -> list[SandboxResult]:
    """Return a result per command from that of the program that ran them."""
    if whole.status != "ok":
        return [whole]
    return [_result(*done) for done in json.loads(whole.stdout)]


def _result(code: int, stdout: str, stderr: str, seconds: float) -> SandboxResult:
    limit = _LIMITS.get(code)
    status = "ok" if code == 0 else "refused" if code == -SIGSYS else "limit" if limit else "error"
    return SandboxResult(status, stdout, stderr, seconds, code, limit)
