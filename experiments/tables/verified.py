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

`--config.FIELD=VALUE` goes to every run, fields of learning only to the training of solvers. The verifier is served on
a free local port while it is needed. The table is written to verified.md, verified.csv and verified.svg in --workdir.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from configs import debate
from experiments.tables import records, runs
from experiments.tables.intervals import difference, rate
from experiments.tables.records import Record
from experiments.tables.runner import (
    Figure,
    Page,
    Session,
    Table,
    at_least,
    check_files,
    config_of,
    main,
    markdown_table,
    steps_flags,
)
from experiments.tables.runs import Run

START_SECONDS = 600
SHARES = {"server": "0.15", "run": "0.75"}
"""Shares of the GPU's memory while a verifier is served."""
METHODS = {
    "maj@{n}": records.majority,
    "best-of-{n} by the verifier": records.best,
    "vote of {n}, weighted by the verifier": records.weighted_vote,
}
"""Ways to choose among n samples, each a function to how right the choice is."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this table."""
    add = parser.add_argument
    add("--rounds", type=at_least(1), default=1, help="Number of verifiers; 1 leaves the solver untuned")
    add("--samples", type=at_least(2), default=9, help="Number of samples per test question")
    add("--reward", choices=("gold", "verifier"), default="gold", help="Reward of the solver")


def check(session: Session) -> None:
    """Exit if the data files are missing."""
    check_files(session, ("gsm8k_train", "gsm8k_test"))


# ------------------------------------------------------------------------------------------------------------- runs


def plan(session: Session) -> Iterator[Run]:
    """Yield the runs of every round: solver, labels, verifier and tests."""
    flags, folder, common = session.flags, session.folder, session.for_tests()
    verifying = f"experiments/verifier.py:{session.form('gsm8k')}" if flags.model else "experiments/verifier.py"
    judging = config_of(verifying)
    quiet = ["--config.eval.every=0", "--config.checkpoint.best_metric="]
    for number in range(flags.rounds):
        solver, labels, judge = (f"{kind}_{number}" for kind in ("solver", "labels", "verifier"))
        before, after = (f"solver_{number - 1}", f"verifier_{number - 1}"), ()
        start = [f"--config.model.init_from={folder / solver}@newest"] if number else []
        if number:
            experiment = f"experiments/gsm8k_debate.py:{session.form('single', 'grpo')}"
            config = config_of(experiment)
            steps = flags.steps or config.steps
            command = [f"--config={experiment}", *steps_flags(config, steps), *quiet]
            command += [f"--config.model.init_from={folder / before[0]}@newest"] if number > 1 else []
            around = functools.partial(scorer, folder / before[1] if flags.reward == "verifier" else None)
            tokens = debate.answers_of(config.to_dict() | {"steps": steps}) * config.task.max_new_tokens
            command += session.passed
            yield Run(solver, command, records.trained(steps), (before[1],), tokens, around=around)
            after = (solver,)
        # The adapters of a labelled solver have the shape of `configs/debate.py`.
        shape = [
            f"--config.model.lora.{name}={value}" for name, value in debate.ADAPTER.items() if flags.model and number
        ]
        command = [f"--config={verifying}", "--mode=label", *start, *shape, *common]
        tokens = judging.algo.questions * judging.algo.samples * judging.task.max_new_tokens
        yield Run(labels, command, lambda at: (at / "labelled" / "summary.json").exists(), after, tokens)
        command = [f"--config={verifying}", f"--config.algo.data={folder / labels}", *quiet, *common]
        yield Run(judge, command, records.trained(judging.steps), (labels,))
        for test, samples in (("greedy", 1), ("samples", flags.samples)):
            command = [f"--config=experiments/gsm8k_debate.py:{session.form('untuned')}", "--mode=eval", *start]
            command += [f"--config.eval.games={flags.problems or 1319}", f"--config.eval.samples={samples}"]
            command += [f"--config.eval.temperature={debate.TEMPERATURE if samples > 1 else 0.0}"]
            command += ["--config.task.params.eval_agents=1", "--config.task.params.turns=1", *common]
            around = functools.partial(scorer, folder / judge if samples > 1 else None)
            tokens = (flags.problems or 1319) * samples * 300
            yield Run(f"{test}_{number}", command, records.evaluated, (judge,), tokens, around=around)


@contextlib.contextmanager
def scorer(folder: Path | None) -> Iterator[list[str]]:
    """Serve the verifier of a run and yield the flag with its address.

    Without a folder, correct answers count.
    """
    if folder is None:
        yield ["--config.task.params.scorer=gold"]
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "launch.py", "--mode=serve_reward", f"--workdir={folder}", f"--config.serve.port={port}"]
    shares = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    before = os.environ.get(shares)
    environment = {**os.environ, shares: SHARES["server"]}
    with (folder / "serve.log").open("a", encoding="utf-8") as log:
        server = subprocess.Popen(
            command, cwd=runs.ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait(server, port, folder)
        os.environ[shares] = before or SHARES["run"]
        yield [f"--config.task.params.scorer=http://127.0.0.1:{port}"]
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
    raise RuntimeError(f"the verifier does not answer; see the end of {folder / 'serve.log'}")


# ---------------------------------------------------------------------------------------------------------- results


def sizes(samples: int) -> list[int]:
    """Return the numbers of samples in the table: powers of two, and all."""
    return [n for n in (2, 4, 8) if n < samples] + [samples]


def page(session: Session) -> Page | None:
    """Return accuracy and cost of every method, and paired differences."""
    lines = [f"# Solver and verifier with {session.model()}", ""]
    lines += ["Test questions of GSM8K in per cent, with 95 % intervals.", ""]
    figures = []
    for number in range(session.flags.rounds):
        folders = [session.folder / f"{test}_{number}" for test in ("greedy", "samples")]
        greedy, samples = (session.read(records.episodes, folder, default=[]) for folder in folders)
        if not samples or not records.has_scores(samples):
            continue
        trained = f"solver trained with {session.flags.reward} rewards, round {number}" if number else "untuned solver"
        rows = list(_rows(greedy, samples, session.flags.samples))
        figures += [Figure(trained, row[0], row[1]) for row in rows]
        heads = ["method", "accuracy", "generated tokens", "tokens read by the verifier"]
        lines += [f"## {trained}", "", *markdown_table(heads, rows)]
        lines += [*comparisons(greedy, samples, session.flags.samples), ""]
    return Page(lines, figures) if figures else None


def chosen(samples: Sequence[Record], method: str, n: int) -> dict[str, float]:
    """Return how right a method is on every question with its first n samples."""
    return {id_: METHODS[method](group[:n]) for id_, group in records.by_example(samples).items()}


def _rows(greedy: Sequence[Record], samples: Sequence[Record], most: int) -> Iterator[list]:
    groups = records.by_example(samples).values()
    tokens = {n: f"{records.cost(samples, n).tokens:,.0f}" for n in (1, *sizes(most))}
    if greedy:
        right = rate(list(records.success(greedy).values()))
        yield ["one greedy completion", right, f"{records.cost(greedy).tokens:,.0f}", None]
    yield ["one sample", rate([group[0]["success"] for group in groups]), tokens[1], None]
    for n in sizes(most):
        turns = [turn for group in groups for record in group[:n] for turn in record["turns"]]
        seen = f"{sum(turn['context'] + turn['tokens'] for turn in turns) / len(groups):,.0f}"
        for method in METHODS:
            right = rate(list(chosen(samples, method, n).values()))
            yield [method.format(n=n), right, tokens[n], seen if "verifier" in method else None]
    yield [f"one of {most} is right", rate([max(r["success"] for r in group) for group in groups]), tokens[most], None]


def comparisons(greedy: Sequence[Record], samples: Sequence[Record], most: int) -> Iterator[str]:
    """Yield paired differences: at equal generated tokens, and against one greedy completion."""
    plain, *others = METHODS
    pairs = [
        (f"{method.format(n=n)}, against {plain.format(n=n)}", chosen(samples, method, n), chosen(samples, plain, n))
        for n in sizes(most) for method in others
    ]  # fmt: skip
    alone = records.success(greedy)
    pairs += [(f"{m.format(n=most)}, against one greedy completion", chosen(samples, m, most), alone) for m in METHODS]
    for words, ours, baseline in pairs:
        if both := [id_ for id_ in ours if id_ in baseline]:
            change = difference([ours[id_] for id_ in both], [baseline[id_] for id_ in both])
            yield f"- {words}: {change.points()} points on {len(both):,} questions."


TABLE = Table("verified", 1, __doc__, {"gsm8k": {"rounds": "solver and verifier"}}, plan, page, add_flags, check)

if __name__ == "__main__":
    sys.exit(main(TABLE))
