"""A solver with a trained verifier, compared with votes at equal generated tokens.

    python -m experiments.tables.verified --model=qwen2.5-coder-1.5b                   # one GPU
    python -m experiments.tables.verified --model=qwen2.5-coder-1.5b --rounds=2        # solver and verifier co-trained
    python -m experiments.tables.verified --steps=2                                    # the embedded model

Round 0 labels completions of the untuned solver, trains a verifier on them, and tests both. Each further round first
trains the solver for correct answers (GRPO), or with `--reward=verifier` for the scores of the last round's verifier,
and then labels and verifies the new solver's completions. The solver is `experiments/gsm8k_debate.py:single`, the
verifier `experiments/verifier.py:gsm8k`.

Test: one greedy completion, and --samples independent ones per question, of which the first n are used by each method:
a plain vote (maj@n), the completion with the highest score (best-of-n), and a vote weighted by the scores. A verifier
generates no tokens, so these methods generate equally many for one n; the tokens that it reads are listed. Intervals
are 95 % over questions; differences are paired by question.

Each run is a separate `launch.py` with its own folder under --workdir, so the same command continues where it was
stopped. `--config.FIELD=VALUE` goes to every run, fields of learning only to the training of solvers. The verifier is
served on a free local port while it is needed. The table is written to verified.md in --workdir.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from configs import debate, verifier
from experiments.tables import debate_records as read
from experiments.tables.command import (
    add_flags,
    at_least,
    check_files,
    finish,
    read_flags,
    run_rounds,
    without_learning,
)
from experiments.tables.intervals import difference, rate
from experiments.tables.runs import ROOT, Rate, Runs, episodes

TABLE = "verified"
FILES = ("gsm8k_train", "gsm8k_test")
START_SECONDS = 600
SHARES = {"server": "0.15", "run": "0.75"}
"""Shares of the GPU's memory while a verifier is served."""
Records = Sequence[read.Record]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    flags, passed = parse(argv)
    folder = Path(flags.workdir).absolute()
    failed, stopped = [], False
    if not flags.collect:
        check_files(TABLE, FILES if flags.model else ())
        with contextlib.closing(plan(flags, passed, folder)) as rounds:
            failed, stopped = run_rounds(rounds, folder, 1)
    return finish(TABLE, folder, table(flags, folder), "", failed, stopped)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of the table and those for every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, TABLE)
    parser.add_argument(
        "--rounds", type=at_least(1), default=1, help="Number of verifiers; 1 leaves the solver untuned"
    )
    parser.add_argument(
        "--samples", type=at_least(2), default=9, help="Number of samples per test question, at most 16"
    )
    parser.add_argument("--problems", type=at_least(0), default=0, help="Number of test questions; 0 uses all")
    parser.add_argument("--reward", choices=("gold", "verifier"), default="gold", help="Reward of the solver")
    flags, passed = read_flags(parser, TABLE, argv)
    if flags.samples > 16:
        parser.error(f"--samples is {flags.samples}, but must be at most 16")
    return flags, passed


# ------------------------------------------------------------------------------------------------------------- runs


def plan(flags: argparse.Namespace, passed: Sequence[str], folder: Path) -> Generator[Runs]:
    """Yield the runs of every round: solver, labels, verifier and tests."""
    model = f"+{flags.model}" if flags.model else ""
    solving, verifying = "--config=experiments/gsm8k_debate.py:", f"--config=experiments/verifier.py:gsm8k{model}"
    if not flags.model:
        verifying = "--config=experiments/verifier.py"
    common = without_learning(passed)
    quiet = ["--config.eval.every=0", "--config.checkpoint.best_metric="]
    for number in range(flags.rounds):
        solver, labels, judge = (f"{kind}_{number}" for kind in ("solver", "labels", "verifier"))
        start = [f"--config.model.init_from={folder / solver}@newest"] if number else []
        if number:
            steps = flags.steps or debate.STEPS
            before = f"solver_{number - 1}"
            command = [f"{solving}single+grpo{model}", f"--config.steps={steps}", *quiet]
            command += [f"--config.optim.warmup={min(5, steps - 1)}"]
            command += [f"--config.model.init_from={folder / before}@newest"] if number > 1 else []
            done = _sealed(folder / solver, steps)
            with _scorer(folder / f"verifier_{number - 1}", needed=flags.reward == "verifier" and not done) as url:
                yield {solver: ([*command, f"--config.task.params.scorer={url}", *passed], done)}
        # The adapters of a labelled solver have the shape of `configs/debate.py`.
        shape = [f"--config.model.lora.{name}={value}" for name, value in debate.ADAPTER.items()] if flags.model else []
        summary = folder / labels / "labelled" / "summary.json"
        yield {labels: ([verifying, "--mode=label", *start, *(shape if number else []), *common], summary.exists())}
        steps = verifier.verifier(f"gsm8k{model}" if model else None).steps
        done = _sealed(folder / judge, steps)
        yield {judge: ([verifying, f"--config.algo.data={folder / labels}", *quiet, *common], done)}
        tests = {f"greedy_{number}": (1, 0.0), f"samples_{number}": (flags.samples, debate.TEMPERATURE)}
        runs: Runs = {}
        missing = not (folder / f"samples_{number}" / "evaluation.json").exists()
        with _scorer(folder / judge, needed=missing) as url:
            for name, (samples, temperature) in tests.items():
                command = [
                    f"{solving}untuned{model}",
                    "--mode=eval",
                    *start,
                    f"--config.eval.games={flags.problems or 10**6}",
                ]
                command += [f"--config.eval.temperature={temperature}", f"--config.task.params.eval_agents={samples}"]
                command += ["--config.task.params.turns=1"]
                command += [f"--config.task.params.scorer={url if samples > 1 else 'gold'}"]
                runs[name] = ([*command, *common], (folder / name / "evaluation.json").exists())
            yield runs


@contextlib.contextmanager
def _scorer(folder: Path, needed: bool) -> Iterator[str]:
    """Serve the verifier of a run and yield its address, or "gold" without one."""
    if not needed:
        yield "gold"
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "launch.py", "--mode=serve_reward", f"--workdir={folder}", f"--config.serve.port={port}"]
    shares = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    before = os.environ.get(shares)
    environment = {**os.environ, shares: SHARES["server"]}
    with (folder / "serve.log").open("a", encoding="utf-8") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(server, port, folder)
        os.environ[shares] = before or SHARES["run"]
        yield f"http://127.0.0.1:{port}"
    finally:
        os.environ.pop(shares, None)
        if before is not None:
            os.environ[shares] = before
        server.terminate()
        server.wait()


def _wait(server: subprocess.Popen, port: int, folder: Path) -> None:
    """Wait until a server accepts connections."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.5)
    raise SystemExit(f"{TABLE}.py: the verifier does not answer; see the end of {folder / 'serve.log'}")


def _sealed(folder: Path, steps: int) -> bool:
    return (folder / "checkpoints" / str(steps) / "seal.json").exists()


# ---------------------------------------------------------------------------------------------------------- results


def first(record: read.Record, n: int) -> read.Record:
    """Return a question with its first `n` samples."""
    return {**record, "turns": record["turns"][:n]}


METHODS: Mapping[str, Callable[[read.Record, int], float]] = {
    "maj@{n}": read.majority,
    "best-of-{n} by the verifier": lambda record, n: read.best_of(first(record, n)),
    "vote of {n}, weighted by the verifier": lambda record, n: read.weighted_vote(first(record, n)),
}
"""Ways to choose among n samples, each a function to how right the choice is."""


def sizes(samples: int) -> list[int]:
    """Return the numbers of samples in the table: powers of two, and all."""
    return [n for n in (2, 4, 8) if n < samples] + [samples]


def table(flags: argparse.Namespace, folder: Path) -> str:
    """Return the page: accuracy and cost of every method, and paired differences."""
    page = [f"# Solver and verifier with {flags.model or 'the embedded model'}", ""]
    page += ["Test questions of GSM8K in per cent, with 95 % intervals.", ""]
    for number in range(flags.rounds):
        greedy, samples = (episodes(folder / f"{test}_{number}") for test in ("greedy", "samples"))
        if not read.scored(samples):
            continue
        trained = "untuned solver" if not number else f"solver trained with {flags.reward} rewards, round {number}"
        page += [f"## {trained}", "", "| method | accuracy | generated tokens | tokens read by the verifier |"]
        page += ["| --- |" + " --- |" * 3, *_lines(greedy, samples, flags.samples), ""]
        page += [*comparisons(greedy, samples, flags.samples), ""]
    return "\n".join(page)


def _lines(greedy: Records, samples: Records, most: int) -> Iterator[str]:
    if greedy:
        right = rate([record["success"] for record in greedy])
        yield f"| one greedy completion | {right} | {read.cost(greedy).written:,.0f} | – |"
    one = rate([read.majority(record, 1) for record in samples])
    yield f"| one sample | {one} | {read.cost(samples, 1).written:,.0f} | – |"
    for n in sizes(most):
        spent = read.cost(samples, n)
        for method, value in METHODS.items():
            right = rate([value(record, n) for record in samples])
            seen = "–" if "verifier" not in method else f"{spent.processed:,.0f}"
            yield f"| {method.format(n=n)} | {right} | {spent.written:,.0f} | {seen} |"
    some = rate([max((turn["verdict"]["right"] for turn in read.judged(r)), default=0.0) for r in samples])
    yield f"| one of {most} is right | {some} | {read.cost(samples).written:,.0f} | – |"


def comparisons(greedy: Records, samples: Records, most: int) -> Iterator[str]:
    """Yield paired differences: at equal generated tokens, and against one greedy completion."""
    plain, *chosen = METHODS
    for n in sizes(most):
        baseline = [METHODS[plain](record, n) for record in samples]
        for method in chosen:
            change = difference([METHODS[method](record, n) for record in samples], baseline)
            yield f"- {method.format(n=n)}, against {plain.format(n=n)}: {_points(change, len(samples))}"
    by_id = {record["id"]: record["success"] for record in greedy}
    both = [record for record in samples if record["id"] in by_id]
    for method in METHODS if both else ():
        values = [METHODS[method](record, most) for record in both]
        change = difference(values, [by_id[record["id"]] for record in both])
        yield f"- {method.format(n=most)}, against one greedy completion: {_points(change, len(both))}"


def _points(change: Rate, n: int) -> str:
    return f"{read.points(change)} points on {n:,} questions."


if __name__ == "__main__":
    sys.exit(main())
