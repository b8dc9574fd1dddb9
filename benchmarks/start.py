"""Time from process start to the first update, by phase and by program.

    python -m benchmarks.start                                          # `tiny`, self-play and imitation
    python -m benchmarks.start --cases=selfplay:smollm2,imitation:smollm2
    python -m benchmarks.start --config.rollout.num_envs=64 --config.eval.games=64           # the same, on a small CPU

A case runs twice, each time in a new process and a new folder: without compiled programs ("cold"), and with those that
the first run has left in the compilation cache ("cached"). It is one step of tic-tac-toe including the evaluation
before it, the checkpoint and the report. Other arguments are passed to `launch.py`. Weights of models other than `tiny`
are random, but their tokenizer must exist (`python -m models.fetch NAME`).

Phases have wall time and the CPU time of the process, which is more informative on a busy machine. A program that is
compiled in the background counts in the phase that is active at that time. Programs are listed with the wall time of
tracing, lowering and compiling (or reading the compiled program), whenever it was spent. `small programs` are those
that took less than a quarter of a second.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STARTED = "MARL_JAX_STARTED"
"""The environment variable with the start time of a measured process."""
KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
PHASES = (  # (module, function, phase)
    ("marl_jax.cli", "prepare", "check the config, import JAX"),
    ("marl_jax.setup", "make", "game, tokenizer, prompts"),
    ("marl_jax.setup.trainer", "at_start", "weights and optimizer"),
    ("marl_jax.setup.trainer", "run_fingerprint", "fingerprint of the run"),
    ("marl_jax.setup.trainer", "programs", "begin to compile"),
    ("marl_jax.modes.train", "evaluation_of", "prepare the evaluation"),
    ("marl_jax.evaluation.games", "GameEvaluation.__call__", "evaluation before training"),
    ("marl_jax.running.profiling", "Clock.phase", "first {}"),
    ("marl_jax.running.checkpoint", "Checkpoints.save", "checkpoint"),
    ("marl_jax.running.checkpoint", "Checkpoints.finish", "checkpoint"),
    ("marl_jax.modes.report", "main", "report"),
)
SMALL, UPDATE = 0.25, "first update"


# ------------------------------------------------------------------------------------------- in the measured process


def now() -> tuple[float, float]:
    """Return the time, and the CPU seconds of this process."""
    return time.time(), time.process_time()


class Recorder:
    """Phases of this process by name, and JAX's timings of every program."""

    def __init__(self, started: float):
        self.started, self.phases, self.programs = started, [], []

    def wrap(self, module: str, path: str, phase: str) -> None:
        """Make every call of a function a phase."""
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        call = getattr(owner, name)

        @functools.wraps(call)
        def timed(*args, **kwargs):
            if "{}" in phase:  # a context manager with the name as its argument
                return self.phase(phase.format(args[-1]), call(*args, **kwargs))
            with self.phase(phase):
                return call(*args, **kwargs)

        setattr(owner, name, timed)

    @contextlib.contextmanager
    def phase(self, name: str, scope: contextlib.AbstractContextManager | None = None):
        """Record a phase; `scope` is a context manager to enter with it."""
        begin = now()
        try:
            with scope or contextlib.nullcontext():
                yield
        finally:
            self.phases.append((name, begin, now()))

    def on_program(self, event: str, begin: float, end: float, **about) -> None:
        """Record the end of tracing, lowering or compiling a program, as a listener of JAX."""
        if event in KINDS:
            self.programs.append((KINDS[event], about.get("fun_name", "?"), begin, end, threading.get_ident()))

    def write(self) -> None:
        """Print the record as the last line of the process."""
        report = dict(started=(self.started, 0.0), ended=now(), phases=self.phases, programs=outermost(self.programs))
        sys.stdout.write("\n" + json.dumps(report) + "\n")


def outermost(spans: list[tuple]) -> list[tuple]:
    """Return the spans (kind, name, begin, end, thread) that are not nested in another one."""
    outer, until = [], collections.defaultdict(float)
    for span in sorted(spans, key=lambda s: (s[2], -s[3])):
        if span[3] > until[span[4]]:
            outer.append(span)
            until[span[4]] = span[3]
    return outer


def measured(argv: list[str]) -> int:
    """Run a command line of `launch.py` and print the record."""
    recorder = Recorder(float(os.environ[STARTED]))
    recorder.phases.append(("start Python", (recorder.started, 0.0), now()))
    with recorder.phase("import launch.py"):
        from marl_jax import cli
    recorder.wrap(*PHASES[0])
    start = cli.start

    def with_phases(*args, **more):
        with recorder.phase("import the trainer"):
            import jax.monitoring

            import marl_jax.modes.train  # noqa: F401
        for phase in PHASES[1:]:
            recorder.wrap(*phase)
        jax.monitoring.register_event_time_span_listener(recorder.on_program)
        return start(*args, **more)

    cli.start = with_phases
    status = cli.main(["launch.py", *argv])
    recorder.write()
    return status


# ----------------------------------------------------------------------------------------------------- reports


def run(argv: list[str]) -> dict:
    """Run a command line in a new process and return its record."""
    command = [sys.executable, "-m", "benchmarks.start", "--", *argv]
    process = subprocess.run(
        command, env={**os.environ, STARTED: repr(time.time())}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit status {process.returncode}:\n{process.stderr[-2000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def by_phase(report: dict) -> dict[str, tuple[float, float]]:
    """Return the wall and CPU seconds of each phase.

    A nested phase is not counted in the outer one. Time outside of all phases is `other`.
    """
    phases = [(name, tuple(begin), tuple(end)) for name, begin, end in report["phases"]]
    marks = sorted({mark for _, *ends in phases for mark in ends} | {tuple(report["started"]), tuple(report["ended"])})
    seconds: dict[str, tuple[float, float]] = {}
    for begin, end in itertools.pairwise(marks):
        inside = [(b, name) for name, b, e in phases if b <= begin and end <= e]
        name = max(inside)[1] if inside else "other"
        wall, cpu = seconds.get(name, (0.0, 0.0))
        seconds[name] = wall + end[0] - begin[0], cpu + end[1] - begin[1]
    return seconds


def by_program(report: dict) -> dict[str, dict[str, float]]:
    """Return the seconds of tracing, lowering and compiling by program, the longest first."""
    kinds = (*KINDS.values(), "programs")
    programs = collections.defaultdict(lambda: dict.fromkeys(kinds, 0))
    for kind, name, begin, end, _ in report["programs"]:
        program = programs[name.removeprefix("jit(").removesuffix(")")]
        program[kind] += end - begin
        program["programs"] += kind == "compile"
    seconds = {name: sum(p[kind] for kind in KINDS.values()) for name, p in programs.items()}
    large = {name: programs[name] for name in sorted(seconds, key=seconds.get, reverse=True) if seconds[name] >= SMALL}
    small = [program for name, program in programs.items() if name not in large]
    return {**large, "small programs": {kind: sum(p[kind] for p in small) for kind in kinds}}


def to_first_update(report: dict) -> tuple[float, float]:
    """Return the wall and CPU seconds until the end of the first update."""
    wall, cpu = min(end for name, _, end in report["phases"] if name == UPDATE)
    return wall - report["started"][0], cpu


def table(case: str, reports: dict[str, dict]) -> str:
    """Return a Markdown table of the seconds by phase and by program."""
    phases = {how: by_phase(report) for how, report in reports.items()}
    names = list(dict.fromkeys(name for seconds in phases.values() for name in seconds))
    heads = " | ".join(f"{how} | CPU" for how in phases)
    lines = [f"| {case}: phase | {heads} |", "| --- |" + " --- | --- |" * len(phases)]
    for name in names:
        columns = [f"{x:.2f}" for seconds in phases.values() for x in seconds.get(name, (0.0, 0.0))]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    ends = " | ".join(f"**{x:.1f}**" for report in reports.values() for x in to_first_update(report))
    lines += [f"| **start to first update** | {ends} |"]
    for how, report in reports.items():
        heads = ("program", "number", *KINDS.values())
        lines += ["", f"| {case}, {how}: {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
        for name, p in by_program(report).items():
            lines.append(f"| {name} | {p['programs']:d} | {p['trace']:.2f} | {p['lower']:.2f} | {p['compile']:.2f} |")
    return "\n".join(lines)


def command_line(case: str, workdir: Path, cache: Path, overrides: list[str]) -> list[str]:
    """Return the arguments of `launch.py` for a case, KIND[:MODEL]."""
    kind, _, model = case.partition(":")
    variant = "+".join(word for word in ({"selfplay": "scratch", "imitation": "sft"}[kind], model) if word)
    changes = {"steps": 1, "optim.warmup": 0} | ({"model.weights": "random"} if model else {})
    return [
        f"--config=experiments/tic_tac_toe_selfplay.py:{variant}", f"--workdir={workdir}",
        f"--compilation_cache={cache}", *(f"--config.{name}={value}" for name, value in changes.items()), *overrides,
    ]  # fmt: skip


def main() -> None:
    """Run all cases and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="selfplay,imitation", help="Comma-separated list of KIND[:MODEL]")
    parser.add_argument("--json", default="", help="File for all measurements")
    args, overrides = parser.parse_known_args()
    everything = {}
    for case in args.cases.split(","):
        with tempfile.TemporaryDirectory() as folder:
            places = {how: (Path(folder, how), Path(folder, "cache")) for how in ("cold", "cached")}
            reports = {how: run(command_line(case, *place, overrides)) for how, place in places.items()}
        everything[case] = reports
        print(table(case, reports) + "\n", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(everything))


if __name__ == "__main__":
    if "--" in sys.argv:
        sys.exit(measured(sys.argv[sys.argv.index("--") + 1 :]))
    main()
