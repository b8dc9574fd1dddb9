"""Planning table: one agent or planner and executor, untrained, GRPO or AT-GRPO.

    python -m experiments.tables.planning                                       # the embedded model, two CPU cores
    python -m experiments.tables.planning --model=smollm2 --jobs=3              # one GPU
    python -m experiments.tables.planning --only=plan_path/at_grpo,sudoku/grpo --steps=100 --seeds=2

A random model cannot improve by playing, so all rows start from a common warm start: a few steps (SFT_STEPS) of
imitation of the solver, one run for each game and form of roles. `--sft_steps=0` skips it. All rows that learn have the
same sample budget, which is checked. With `--seeds=2` everything is run twice, including warm starts. Each run is a
separate `launch.py` with its own folder under --workdir, so the same command continues where it was stopped and
collects finished runs. `--config.FIELD=VALUE` goes to every run; fields of learning go only to the rows. SIGTERM and
Ctrl-C are passed on: running runs save and stop, and the table shows the results so far.

The table is written to planning.md, planning.csv and planning.svg in --workdir. Intervals are those of the evaluation
(95 %).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from configs import planning as puzzles
from experiments.tables.charts import Bar, bar_chart
from experiments.tables.command import add_flags, at_least, finish, read_flags, run_rounds, select, without_learning
from experiments.tables.runs import Rate, Runs, counted, evaluation, evaluations, is_done

GAMES = {"plan_path": "Plan-Path", "sokoban": "Sokoban", "sudoku": "Sudoku"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        words: Display name.
        form: Form of the experiment (`configs/planning.py`); PER_ROLE depends on the model.
        learns: Whether the row is trained; otherwise it shows the untuned model.
        opponent: Row of the evaluation that counts.
        run: Row whose folder is used; "" uses its own.
        twin: Row that learns from the same start, so that its evaluation before training gives the same result.
    """

    words: str
    form: str
    learns: bool = True
    opponent: str = "self"
    run: str = ""
    twin: str = ""


PER_ROLE = "per role"
ROWS = {
    "single": Row("one agent", "single", learns=False, twin="grpo"),
    "grpo": Row("one agent + GRPO", "grpo"),
    "roles": Row("planner and executor, prompts only", "roles", learns=False, twin="at_grpo"),
    "roles_grpo": Row("planner and executor + GRPO", "roles_grpo"),
    "at_grpo": Row("planner and executor + AT-GRPO, shared", "at_grpo"),
    "per_role": Row("planner and executor + AT-GRPO, per role", PER_ROLE),
    "swapped": Row("… the same, roles swapped", PER_ROLE, opponent="swapped", run="per_role"),
}
WARM = {"single": "sft", "roles": "roles_sft"}  # forms of the warm starts
SFT_STEPS = {"plan_path": 20, "sokoban": 40, "sudoku": 40}
"""Steps of imitation after which the embedded model solves a tenth to two fifths: a start with room to improve."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a row with one seed.

    Attributes:
        game: Name of the game.
        row: Name of the row.
        seed: Random seed.
        before: Success before training.
        after: Success after training.
        answers: Maximum number of completions in training, or None without training.
        used: Number of completions in training, or None if the run did not count them. GRPO leaves some of the room
            empty.
    """

    game: str
    row: str
    seed: int
    before: Rate | None
    after: Rate | None
    answers: int | None = None
    used: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    flags, passed = parse(argv)
    wanted = select("planning", flags.only, GAMES, ROWS)
    check_budgets(flags, wanted)
    folder = Path(flags.workdir)
    failed, stopped = ([], False) if flags.collect else run_rounds(plan(flags, wanted, passed), folder, flags.jobs)
    results = collect(flags, wanted)
    if flags.collect and not any(result.before or result.after for result in results):
        raise SystemExit(f"planning.py: {folder} has no runs to collect")
    status = finish("planning", folder, markdown(results, flags), drawing(results), failed, stopped)
    write_csv(results, folder / "planning.csv")
    return status


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of the table and those for every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "planning")
    parser.add_argument("--small", action="store_true", help="Use the small sizes of the embedded model for any model")
    parser.add_argument("--only", default="", help="Rows as GAME/ROW or GAME, separated by commas")
    parser.add_argument(
        "--sft_steps", type=at_least(-1), default=-1, help="Number of steps of imitation; 0 for none, -1 for the game's"
    )
    parser.add_argument(
        "--games", type=at_least(0), default=0, help="Number of concurrent games of one agent; other forms play fewer"
    )
    parser.add_argument("--eval_games", type=at_least(1), default=512)
    parser.add_argument(
        "--seeds", type=at_least(1), default=1, help="Number of runs of every row, with the seeds 0, 1, …"
    )
    flags, passed = read_flags(parser, "planning", argv)
    if flags.seeds > 1 and any(flag.startswith("--config.seed=") for flag in passed):
        parser.error("--seeds sets the seed of every run; remove --config.seed")
    return flags, passed


# ------------------------------------------------------------------------------------------------------------- runs


def experiment(flags: argparse.Namespace, form: str) -> str:
    """Return the form for `--config`, the part after the colon."""
    if form == PER_ROLE:  # adapters on a random base learn little; copies of a large model need much memory
        form = "at_grpo_lora" if flags.model else "at_grpo_apart"
    parts = [form, flags.model, "small" if flags.small and flags.model else ""]
    return "+".join(part for part in parts if part)


def config_of(flags: argparse.Namespace, game: str, row: str):
    """Return the config of a row: the experiment's, with the table's flags."""
    form = experiment(flags, ROWS[row].form)
    config = importlib.import_module(f"experiments.{game}").get_config(form)
    if flags.steps:
        config.steps = flags.steps
    if flags.games:
        config.rollout.num_envs = flags.games // puzzles.fewer(form.split("+")[0])
    return config


def answers(config: Mapping) -> int:
    """Return the maximum number of completions in training.

    GRPO plays complete episodes only, so it leaves some of the room empty.
    """
    candidates = config["algo"]["group_size"] if config["algo"]["name"] == "at_grpo" else 1
    return config["steps"] * config["rollout"]["num_envs"] * config["rollout"]["unroll_length"] * candidates


def check_budgets(flags: argparse.Namespace, wanted: Sequence[tuple[str, str]]) -> None:
    """Exit unless all rows of a game that learn have the same budget."""
    for game in GAMES:
        budgets = {row: answers(config_of(flags, game, row)) for g, row in wanted if g == game and ROWS[row].learns}
        if len(set(budgets.values())) > 1:
            raise SystemExit(f"planning.py: budgets of {game} differ: {budgets}; --games must be a multiple of 32")


def plan(flags: argparse.Namespace, wanted: Sequence[tuple[str, str]], passed: Sequence[str] = ()) -> tuple[Runs, Runs]:
    """Return two rounds of runs: warm starts, and the rows that begin from them.

    Args:
        flags: Flags of the table.
        wanted: Selected (game, row) pairs.
        passed: Flags for every run.
    """
    folder = Path(flags.workdir)
    for_warm = without_learning(passed)
    warm, rows = {}, {}
    for (game, row), seed in itertools.product(wanted, range(flags.seeds)):
        about, start, sft_steps = ROWS[row], [], warm_steps(flags, game)
        common = [f"--config.eval.games={flags.eval_games}", *([f"--config.seed={seed}"] if seed else [])]
        if sft_steps:
            form = WARM["single" if about.form in ("single", "grpo") else "roles"]
            name = name_of(game, form, seed)
            command = [f"--config=experiments/{game}.py:{experiment(flags, form)}", *common, *for_warm]
            command += [f"--config.steps={sft_steps}", f"--config.optim.warmup={min(5, sft_steps - 1)}"]
            warm[name] = (command, is_done(folder / name, sft_steps))
            start = [f"--config.model.init_from={(folder / name).absolute()}"]
        name = name_of(game, about.run or row, seed)
        config = config_of(flags, game, row)
        command = [f"--config=experiments/{game}.py:{experiment(flags, about.form)}", *common, *start]
        if about.learns:
            command += [f"--config.steps={config.steps}", f"--config.rollout.num_envs={config.rollout.num_envs}"]
            command += passed
            rows[name] = (command, is_done(folder / name, config.steps))
        elif (game, about.twin) not in wanted:  # otherwise the twin's evaluation before training is used
            twin = folder / name_of(game, about.twin, seed)
            done = (folder / name / "evaluation.json").exists() or evaluation(twin, "self", first=True)
            rows[name] = ([*command, "--mode=eval", *passed], bool(done))
    return warm, rows


def name_of(game: str, run: str, seed: int) -> str:
    """Return the folder of a run."""
    return f"{game}/{run}-{seed}" if seed else f"{game}/{run}"


def warm_steps(flags: argparse.Namespace, game: str) -> int:
    """Return the number of steps of imitation before a game's rows."""
    return SFT_STEPS[game] if flags.sft_steps < 0 else flags.sft_steps


# ---------------------------------------------------------------------------------------------------------- results


def collect(flags: argparse.Namespace, wanted: Sequence[tuple[str, str]]) -> list[Result]:
    """Read the results of the selected rows; unfinished runs count as far as they got."""
    folder, results = Path(flags.workdir), []
    for (game, row), seed in itertools.product(wanted, range(flags.seeds)):
        about = ROWS[row]
        here = folder / name_of(game, about.run or row, seed)
        if about.learns:
            path = here / "config.json"
            sampled = answers(json.loads(path.read_text())) if path.exists() else None
            after = evaluation(here, about.opponent) if any(r["step"] for r in evaluations(here)) else None
            before = evaluation(here, about.opponent, first=True)
            results.append(Result(game, row, seed, before, after, sampled, counted(here)))
        else:
            twin = folder / name_of(game, about.twin, seed)
            before = evaluation(twin, "self", first=True) or evaluation(here, "self", first=True)
            results.append(Result(game, row, seed, before, None))
    for game in GAMES:
        budgets = {name_of(r.game, r.row, r.seed): r.answers for r in results if r.game == game and r.answers}
        if len(set(budgets.values())) > 1:
            raise SystemExit(f"planning.py: the runs of {game} have different budgets: {budgets}; use a new --workdir")
    return results


def markdown(results: Sequence[Result], flags: argparse.Namespace) -> str:
    """Return the table as Markdown: success in percent before and after, with intervals."""
    games = list(dict.fromkeys(result.game for result in results))
    by_key = {(r.game, r.row, r.seed): r for r in results}
    lines = [f"# Planning with {flags.model or 'the embedded model'}", ""]
    lines += [
        "Success on held-out levels in per cent, greedy answers, with 95 % intervals: before → after training"
        + (f"; seeds 0 to {flags.seeds - 1}, one below the other." if flags.seeds > 1 else "."),
        "",
    ]
    lines += ["| | " + " | ".join(GAMES[game] for game in games) + " |", "| --- |" + " --- |" * len(games)]
    for row in dict.fromkeys(result.row for result in results):
        cells = ["<br>".join(cell(by_key.get((game, row, seed))) for seed in range(flags.seeds)) for game in games]
        lines.append(f"| {ROWS[row].words} | " + " | ".join(cells) + " |")
    lines += ["", *notes(results, flags)]
    return "\n".join(lines) + "\n"


def cell(result: Result | None) -> str:
    """Return the text of one cell."""
    if result is None or not (result.before or result.after):
        return "–"
    if not ROWS[result.row].learns:
        return str(result.before)
    return f"{result.before or '–'} → {f'**{result.after}**' if result.after else '–'}"


def notes(results: Sequence[Result], flags: argparse.Namespace) -> Iterator[str]:
    """Yield the notes below the table."""
    for game in dict.fromkeys(result.game for result in results):
        sampled = next((result.answers for result in results if result.game == game and result.answers), None)
        if sampled:
            yield f"- {GAMES[game]}: every row that learns has room for {sampled:,} answers, GRPO for whole games."
        used = {}
        for r in results:
            if r.game == game and r.used and r.used < r.answers:
                used.setdefault(r.row, []).append(f"{100 * r.used / r.answers:.0f} %")
        if used:
            parts = ", ".join(f"{', '.join(shares)} ({ROWS[row].words})" for row, shares in used.items())
            yield f"- {GAMES[game]}: of that room were used {parts}."
        folders = [Path(flags.workdir) / name_of(r.game, r.row, r.seed) for r in results if r.game == game]
        floor = [evaluation(folder, "random alone", first=True) for folder in folders]
        floor = next((rate for rate in floor if rate), None)
        if floor:
            yield f"- {GAMES[game]}: random moves solve {floor}."
        if steps := warm_steps(flags, game):
            yield f"- {GAMES[game]}: all rows start from {steps} steps of imitation of a solver on training levels."


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write the table as CSV, with rates between 0 and 1."""
    ends = ("value", "low", "high")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        rates = [f"{when}_{end}" for when in ("before", "after") for end in ends]
        writer.writerow(["game", "row", "seed", *rates, "answers", "used"])
        for r in results:
            rates = [getattr(rate, end) if rate else "" for rate in (r.before, r.after) for end in ends]
            writer.writerow([r.game, r.row, r.seed, *rates, *("" if x is None else x for x in (r.answers, r.used))])


def drawing(results: Sequence[Result]) -> str:
    """Draw the table as bars."""
    groups, several = {}, any(r.seed for r in results)
    for r in sorted(results, key=lambda r: (list(GAMES).index(r.game), r.seed)):
        of = lambda rate: None if rate is None else (rate.value, rate.low, rate.high)  # noqa: E731
        title = f"{GAMES[r.game]}, seed {r.seed}" if several else GAMES[r.game]
        groups.setdefault(title, []).append(Bar(ROWS[r.row].words, of(r.before), of(r.after)))
    return bar_chart(groups)


if __name__ == "__main__":
    sys.exit(main())
