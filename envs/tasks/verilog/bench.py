"""Simulations of answers next to a reference, by Icarus Verilog in the sandbox.

A test bench has the modules `tb` and `stimulus_gen`, instances of `RefModule` and `TopModule`, and prints
"Mismatches: E in N samples" at its end. Four things keep an answer from deciding its own verdict:

- Its text is restricted (`inspection.py`).
- All modules have random names, and so has the line with the verdict.
- The answer is inside a wrapper with the ports of the reference. An answer that drives an input, which the reference
  shares, makes that port of the wrapper bidirectional, and the compiler says so.
- The number of samples must be that of the reference tested against itself.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import re
import secrets
import shutil

from envs.tasks.sandbox import Limits, Sandbox, SandboxResult
from envs.tasks.verilog import inspection

ANSWER = "answer.sv"
MISSING = (
    "iverilog is not installed, but the task verilog needs it. Install the package iverilog (apt-get install iverilog "
    "on Debian and Ubuntu)."
)
VERDICT = "Mismatches: %1d in %1d samples"
_SETTINGS = (
    "generation:2012", "generation:no-specify", "generation:assertions", "generation:xtypes", "warnings:n",
    "iwidth:32", "widthcap:65536",
)  # fmt: skip
_SHARED = "coerced to inout"
"""Part of the compiler's warning about an input that is driven."""
_PORT = re.compile(
    r"(?:(input|output)\b)?\s*(?:(?:wire|reg|logic|var)\b)?\s*(?:signed\b)?\s*(\[[^\]]*\])?\s*([A-Za-z_]\w*)"
)


@dataclasses.dataclass(frozen=True)
class Tools:
    """Paths of Icarus Verilog.

    Attributes:
        folder: Folder with the preprocessor, the compiler and their modules.
        vvp: The simulator.
    """

    folder: str
    vvp: str

    @property
    def programs(self) -> tuple[str, str]:
        """Programs for the sandbox."""
        return self.folder, self.vvp


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a simulation.

    Attributes:
        kind: "right", "wrong", "error" (of the compiler or a limit) or "refused".
        samples: Number of compared samples, 0 without a verdict.
        mismatches: Number of samples that differ.
        message: Messages of the compiler about the answer, or the reason.
    """

    kind: str
    samples: int = 0
    mismatches: int = 0
    message: str = ""


@functools.cache
def find_tools() -> Tools | None:
    """Return the installed Icarus Verilog, or None."""
    compiler, vvp = shutil.which("iverilog"), shutil.which("vvp")
    if compiler is None or vvp is None:
        return None
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(compiler)))
    folders = [f"{prefix}/lib/ivl", f"{prefix}/lib64/ivl", *sorted(glob.glob(f"{prefix}/lib/*/ivl"))]
    folder = next((path for path in folders if os.path.isfile(f"{path}/ivlpp")), None)
    return None if folder is None else Tools(os.path.realpath(folder), os.path.realpath(vvp))


def judge(sandbox: Sandbox, tools: Tools, answer: str, ref: str, test: str, limits: Limits) -> Verdict:
    """Compile an answer and compare it with the reference."""
    try:
        text = inspection.checked(answer)
    except inspection.Refused as reason:
        return Verdict("refused", message=str(reason))
    verdict = _simulated(sandbox, tools, text, ref, test, limits)
    if verdict.kind == "right" and verdict.samples != _gold_samples(sandbox, tools, ref, test, limits):
        return dataclasses.replace(verdict, kind="wrong", message="the simulation ended early")
    return verdict


def gold(sandbox: Sandbox, tools: Tools, ref: str, test: str, limits: Limits) -> Verdict:
    """Compare the reference with itself, without the rules for answers."""
    return _simulated(sandbox, tools, as_answer(ref), ref, test, limits)


def as_answer(ref: str) -> str:
    """Return the reference module as an answer."""
    return re.sub(r"\bRefModule\b", inspection.TOP, ref)


_samples: dict[tuple[str, str], int] = {}


def _gold_samples(sandbox: Sandbox, tools: Tools, ref: str, test: str, limits: Limits) -> int:
    """Return the number of samples of the reference, or 0 if it fails.

    A process simulates each reference once.
    """
    if (ref, test) not in _samples:
        verdict = gold(sandbox, tools, ref, test, limits)
        if verdict.kind != "right":
            return 0
        _samples[ref, test] = verdict.samples
    return _samples[ref, test]


def ports(ref: str) -> list[tuple[str, str, str]]:
    """Return direction, range and name of the ports of a reference module.

    Raises:
        ValueError: The header is not a list of ports with directions.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", ref, flags=re.DOTALL)
    header = re.search(r"\bmodule\s+RefModule\s*\((.*?)\)\s*;", text, re.DOTALL)
    listed, direction, width = [], "", ""
    for part in header[1].split(",") if header else ():
        match = _PORT.fullmatch(part.strip())
        if match is None or not (match[1] or direction):
            raise ValueError(f"ref has the port {part.strip()!r}, but must have ports such as 'input [7:0] a'")
        if match[1]:
            direction, width = match[1], ""
        width = match[2] or width
        listed.append((direction, width, match[3]))
    if not listed:
        raise ValueError("ref has no header 'module RefModule (…);' with ports")
    return listed


def _wrapper(ref: str, name: str, inner: str) -> str:
    """Return a module with the ports of the reference that contains the answer."""
    listed = ports(ref)
    header = ", ".join(f"{direction} wire {width} {port}" for direction, width, port in listed)
    joined = ", ".join(f".{port}({port})" for _, _, port in listed)
    return f"`resetall\n`timescale 1ps/1ps\nmodule {name} ({header});\n  {inner} answer ({joined});\nendmodule\n"


def _simulated(sandbox: Sandbox, tools: Tools, answer: str, ref: str, test: str, limits: Limits) -> Verdict:
    nonce = secrets.token_hex(8)
    names = ("tb", "stimulus_gen", "RefModule", inspection.TOP)
    new = {name: f"m{nonce}_{number}" for number, name in enumerate(names)}
    top = f"m{nonce}_top"
    bench = test.replace(VERDICT, f"{nonce} {VERDICT}")
    for name in names:
        bench = re.sub(rf"\b{name}\b", new[name], bench)
    files = {
        "bench.sv": bench,
        "ref.sv": re.sub(r"\bRefModule\b", new["RefModule"], ref) + "\n",
        "wrapper.sv": _wrapper(ref, new[inspection.TOP], top),
        ANSWER: re.sub(rf"\b{inspection.TOP}\b", top, answer) + "\n",
        "settings": _settings(tools, new["tb"]),
    }
    sources = ["bench.sv", "ref.sv", "wrapper.sv", ANSWER]
    commands = [
        [f"{tools.folder}/ivlpp", "-L", "-o", "all.sv", *sources],
        [f"{tools.folder}/ivl", "-Csettings", f"-C{tools.folder}/vvp.conf", "--", "all.sv"],
        [tools.vvp, "-n", "design", "-none"],
    ]
    results = sandbox.run_native_sync(commands, files=files, limits=limits)
    if results[-1].status != "ok" or len(results) < len(commands):
        return Verdict("error", message=_reason(results).replace(top, inspection.TOP))
    if _SHARED in results[1].stderr:
        return Verdict("refused", message="an input must not be driven")
    verdicts = re.findall(rf"^{nonce} Mismatches: +(\d+) in +(\d+) samples *$", results[-1].stdout, re.MULTILINE)
    if len(verdicts) != 1:
        return Verdict("wrong", message="the simulation did not end")
    mismatches, samples = map(int, verdicts[0])
    return Verdict("right" if samples and not mismatches else "wrong", samples, mismatches)


def _settings(tools: Tools, root: str) -> str:
    modules = (f"module:{tools.folder}/{name}.vpi" for name in ("system", "v2005_math", "v2009"))
    lines = [f"basedir:{tools.folder}", f"root:{root}", *modules, *_SETTINGS, "out:design"]
    return "\n".join(lines) + "\n"


def _reason(results: list[SandboxResult]) -> str:
    """Return the compiler's messages about the answer, or the limit."""
    last = results[-1]
    if last.limit:
        return f"the limit of {last.limit} was exceeded"
    lines = [line for line in last.stderr.splitlines() if line.startswith(f"{ANSWER}:")]
    return "\n".join(lines[:10])[:1000] or "the module does not fit the interface"
