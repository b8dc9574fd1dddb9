"""Table of debates by turn, compared with baselines of equal numbers of generated tokens.

    MARL_JAX_DATA=../shared/data python -m experiments.tables.debate --model=qwen2.5-coder-1.5b           # one GPU
    python -m experiments.tables.debate --model=qwen2.5-coder-1.5b --only=gsm8k/untuned,gsm8k/maporl,gsm8k/single
    python -m experiments.tables.debate --model=qwen2.5-coder-1.5b --scorer=http://127.0.0.1:8100 --only=gsm8k
    python -m experiments.tables.debate --only=gsm8k/untuned,gsm8k/correctness        # the embedded model

The rows are: the untuned model; models trained in debates as published (`published.maporl`), with --algorithm, with
groups of candidates for every turn (AT-GRPO) or with a policy for every turn; a single agent; rows with a verifier's
scores as the reward (with `--scorer`); and pairs of different models. All rows that learn sample the same number of
completions, which is checked.

Each row is tested in debates of 3 agents and 3 turns, on its own task and on the other one (transfer); with nine
independent samples per question; and as one agent that refines its answer nine times. Debates are compared at equal
generated tokens with n samples by vote (maj@n) and by a verifier's scores, and in training with the single agent
(`trials.py`).

`--config.FIELD=VALUE` goes to every run; fields of learning do not go to evaluations. Data files must exist, except for
the embedded model. The table is written to debate.md, debate.csv and debate.svg in --workdir.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence

from configs import debate as forms
from experiments.tables import records, trials
from experiments.tables.intervals import Rate, rate
from experiments.tables.records import Record
from experiments.tables.results import Results
from experiments.tables.runner import Page, Session, Table, check_budgets, check_files, config_of, main, markdown_table
from experiments.tables.trials import Spec, Test, Trial, steps_of


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the table.

    Attributes:
        words: Display name.
        experiment: Name of the experiment.
        datasets: Datasets of a pretrained model and of the embedded one.
        files: Data files.
        size: Number of test questions.
        other: Task of the transfer test.
        min_words: Minimum number of words of an answer that is scored by the verifier. Hardly any solution that it was
            trained on is shorter, and its score of a bare number means nothing.
    """

    words: str
    experiment: str
    datasets: tuple[str, str]
    files: tuple[str, ...]
    size: int
    other: str
    min_words: int = 0


TASKS = {
    "gsm8k": Task("GSM8K", "gsm8k_debate", ("gsm8k", "sample"), ("gsm8k_train", "gsm8k_test"), 1319, "anli", 40),
    "anli": Task("ANLI, chance 33.3 %", "anli_debate", ("nli", "nli"), ("anli_dev", "anli_test"), 3200, "gsm8k"),
}
TESTS = {"debate": "debate", "samples": "one sample", "refine": "self-refinement", "transfer": "transfer"}
FORMS = {
    "untuned": ("untuned",),
    "maporl": ("maporl",),
    "correctness": (),
    "at_grpo": ("at_grpo",),
    "per_turn": ("per_turn",),
    "verifier": (),
    "single": ("single",),
    "single_verifier": ("single",),
    "pair_untuned": ("untuned", "pair"),
    "pair": ("pair",),
}
"""Words of the forms of the rows; --algorithm is added unless there is one."""
ROWS = {
    "untuned": "untuned",
    "maporl": "trained as published (MAPoRL)",
    "correctness": "trained for correct answers",
    "at_grpo": "trained with groups for every turn (AT-GRPO)",
    "per_turn": "trained with a policy for every turn",
    "verifier": "trained with the verifier",
    "single": "trained as a single agent",
    "single_verifier": "trained as a single agent with the verifier",
    "pair_untuned": "two models, untuned",
    "pair": "two models, trained for correct answers",
}
CHANGES = {"RR": "right → right", "RW": "right → wrong", "WR": "wrong → right", "WW": "wrong → wrong"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this table."""
    trials.add_flags(parser)
    parser.add_argument("--tests", default=",".join(TESTS), help="Tests of the rows, separated by commas")
    algorithms = [name for name in forms.ALGORITHMS if name != forms.UNTUNED]
    parser.add_argument("--algorithm", choices=algorithms, default="ppo", help="Algorithm of rows without another one")
    parser.add_argument("--scorer", default="", help="Address of a verifier, for rows with one and best-of-n")


def check(session: Session) -> None:
    """Exit if tests, rows, budgets or data files do not fit."""
    flags = session.flags
    if unknown := [test for test in flags.tests.split(",") if test not in TESTS]:
        raise SystemExit(f"debate: --tests has {unknown[0]!r}, but must be one of: {', '.join(TESTS)}")
    needy = [row for row in ROWS if "verifier" in row and f"/{row}" in flags.only]
    if needy and not flags.scorer:
        raise SystemExit(f"debate: the row {needy[0]!r} needs --scorer=http://…, the address of a verifier")
    tasks = dict.fromkeys(task for task, _ in session.wanted)
    if flags.scorer and len(tasks) > 1:
        raise SystemExit(f"debate: a verifier judges one task; add --only={' or '.join(TASKS)}")
    session.wanted = [(task, row) for task, row in session.wanted if flags.scorer or "verifier" not in row]
    made = {key: make(session, *key) for key in session.wanted}
    check_budgets("debate", {key: trial.completions[0] for key, trial in made.items() if trial.steps})
    used = {trial.group for trial in made.values()}
    used |= {TASKS[trial.group].other for trial in made.values() if "transfer" in trial.tests}
    check_files(session, [file for task in TASKS if task in used for file in TASKS[task].files])


def size(session: Session) -> tuple[int, int]:
    """Return the numbers of agents and turns of a tested debate."""
    return forms.EVAL_AGENTS, forms.TURNS if session.flags.model else forms.SMALL_TURNS


def make(session: Session, task: str, row: str) -> Trial:
    """Return the trial of a row."""
    words, algorithm = FORMS[row], session.flags.algorithm
    # The first turn does not learn in MAPoRL, and a single agent has no other turn.
    algorithm = "ppo" if algorithm == "maporl" and "single" in words else algorithm
    words = words if {*words} & {*forms.ALGORITHMS} else (*words, algorithm)
    experiment = f"experiments/{TASKS[task].experiment}.py:{session.form(*words)}"
    steps = 0 if "untuned" in words else steps_of(session, experiment)
    least = TASKS[task].min_words if session.flags.model else 0
    training = (f"--config.task.params.scorer={session.flags.scorer}", f"--config.task.params.min_words={least}")
    agents, turns = size(session)
    chosen = [
        name for name in TESTS if name in session.flags.tests.split(",") and ("pair" not in row or name == "debate")
    ]
    return Trial(
        task, row, experiment, steps,
        (forms.answers_of(config_of(experiment).to_dict() | {"steps": steps}), agents * turns),
        {name: _test(session, task, name) for name in chosen}, training=training if "verifier" in row else (),
        identity={"task.params.scorer": session.flags.scorer} if "verifier" in row else {},
    )  # fmt: skip


def _test(session: Session, task: str, name: str) -> Test:
    """Return an evaluation; samples are episodes of one agent and one turn."""
    agents, turns = size(session)
    own = TASKS[TASKS[task].other if name == "transfer" else task]
    games, n = min(session.flags.problems or own.size, own.size), agents * turns
    agents, turns = {"samples": (1, 1), "refine": (1, n)}.get(name, (agents, turns))
    scorer = session.flags.scorer if name == "samples" and session.flags.scorer else "gold"
    params = dict(dataset=own.datasets[not session.flags.model], eval_agents=agents, turns=turns, scorer=scorer)
    flags = [f"--config.eval.games={games}", *(f"--config.task.params.{key}={value}" for key, value in params.items())]
    flags += [f"--config.eval.samples={n}"] * (name == "samples")
    flags += [f"--config.task.max_length={8192 if session.flags.model else 4096}"] * (name == "refine")  # a long chat
    return Test(tuple(flags), games)


def page(session: Session) -> Page | None:
    """Return accuracy by turn, comparisons at equal tokens, changes of answers and transfer."""
    results, figures = Results(session, SPEC), []
    agents, turns = size(session)
    lines = [
        f"# Debates with {session.model()}", "",
        f"Test parts, in per cent, with 95 % intervals over seeds and questions. Debates have {agents} agents and "
        f"{turns} turns; the vote's answer counts, and a tie of n answers as 1/n.", "",
    ]  # fmt: skip
    built_in = "" if session.flags.model else " (built-in examples)"
    for task in dict.fromkeys(task for task, _ in session.wanted):
        words = {test: heading for test, heading in TESTS.items() if test in session.flags.tests.split(",")}
        lines += [f"## {TASKS[task].words}{built_in}", "", *_by_turn(session, results, task, "debate")]
        lines += [*results.summary(task, words), *results.comparisons(task, {"debate": "debate"})]
        lines += _changes(results, task)
        if "transfer" in words:
            lines += [f"### Transfer: debates on {TASKS[TASKS[task].other].words}{built_in}", ""]
            lines += _by_turn(session, results, task, "transfer")
        figures += results.figures(task, {test: f"{TASKS[task].words}{built_in}: {w}" for test, w in words.items()})
    return Page(lines, figures) if results.cells else None


def _by_turn(session: Session, results: Results, task: str, test: str) -> list[str]:
    """Return the accuracy of the vote at every turn, and of one agent."""
    _, turns = size(session)
    metrics = {f"vote_turn_{t + 1}": f"vote, turn {t + 1}" for t in range(turns)}
    metrics |= {"accuracy_turn_1": "one agent, first turn", f"accuracy_turn_{turns}": "one agent, last turn"}
    rows = []
    for row, own in results.rows(task).items():
        if test in own[0].tests:
            some = results.episodes(own, test)
            rows.append([ROWS[row], *(by_metric(some, name) if some else None for name in metrics)])
    return markdown_table(["", *metrics.values()], rows)


def by_metric(some: Sequence[Record], name: str) -> Rate:
    """Return the mean of a metric over questions; failed episodes count as 0."""
    groups = records.by_example(some).values()
    return rate([sum(record["metrics"].get(name, 0.0) for record in group) / len(group) for group in groups])


def _changes(results: Results, task: str) -> list[str]:
    rows = []
    for row, own in results.rows(task).items():
        some = results.episodes(own, "debate")
        for t, shares in enumerate(transitions(some), 1):
            rows.append([ROWS[row], f"{t} → {t + 1}", *(f"{100 * shares[change]:.1f}" for change in CHANGES)])
    return ["### Changes of answers", "", *markdown_table(["", "turn", *CHANGES.values()], rows)]


def transitions(some: Sequence[Record]) -> list[dict[str, float]]:
    """Return the fractions of "RR", "RW", "WR" and "WW" for every later turn."""
    counts: dict[int, Counter[str]] = {}
    for record in some:
        judged = [turn for turn in record["turns"] if turn["verdict"] is not None and not record["failed"]]
        right = {(turn["role"], turn["turn"]): "R" if turn["verdict"]["right"] else "W" for turn in judged}
        for (role, turn), after in right.items():
            if (role, turn - 1) in right:
                counts.setdefault(turn, Counter())[right[role, turn - 1] + after] += 1
    return [{change: counts[turn][change] / counts[turn].total() for change in CHANGES} for turn in sorted(counts)]


SPEC = Spec(
    make,
    untrained=lambda row: "" if "untuned" in row else "pair_untuned" if row == "pair" else "untuned",
    baselines=lambda row: (
        () if "untuned" in row or "single" in row else (f"single{'_verifier' * (row == 'verifier')}",)
    ),
    sampled=lambda row: {"untuned": "untuned", "single": "trained as a single agent"} | {row: "the same model"},
    samples=lambda test: "samples" if test == "debate" else "",
)
TABLE = Table(
    "debate", 2, __doc__, dict.fromkeys(TASKS, ROWS), lambda session: trials.plan(session, SPEC), page, add_flags, check
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
