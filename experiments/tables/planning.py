"""Planning table: one agent or several roles, untrained, GRPO or AT-GRPO.

    python -m experiments.tables.planning                                       # the embedded model, two CPU cores
    python -m experiments.tables.planning --model=smollm2 --jobs=3 --only=plan_path,sokoban,sudoku        # one GPU
    python -m experiments.tables.planning --model=qwen2.5-coder-1.5b --only=team_plan_path --seeds=3 --stop_when=0.98
    python -m experiments.tables.planning --model=qwen2.5-coder-1.5b --only=team_plan_path --runs=FOLDER --collect

The groups `plan_path`, `sokoban` and `sudoku` are games in which a model chooses every move, alone or as planner and
executor. A random model cannot improve by playing, so all of their rows start from a common warm start: a few steps
(SFT_STEPS) of imitation of the solver, one run for each game, form of roles and seed. `--sft_steps=0` skips it. All
rows that learn have the same sample budget, which is checked. Rows without training show the first evaluation of a row
that learns from the same start.

The groups `team_plan_path`, `team_sokoban` and `team_sudoku` are the team of the AT-GRPO paper: a tool agent writes a
program and a plan agent decides (`planning_team.py`, `trials.py`). Runs end after --steps updates or once --stop_when
is reached. Finished runs from elsewhere are recognised by their config.json in the folders --runs; they need
metrics.jsonl, events.jsonl and either answers/test_STEP.jsonl of `--mode=eval` or their checkpoints.

`--config.FIELD=VALUE` goes to every run; fields of learning go only to the rows that learn. The table is written to
planning.md, planning.csv and planning.svg in --workdir.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from configs import planning as puzzles
from experiments.tables import planning_team as team
from experiments.tables import records, trials
from experiments.tables.intervals import Rate
from experiments.tables.runner import (
    Figure,
    Page,
    Session,
    Table,
    at_least,
    check_budgets,
    config_of,
    main,
    markdown_table,
    steps_flags,
)  # fmt: skip
from experiments.tables.runs import Run

GAMES = {"plan_path": "Plan-Path", "sokoban": "Sokoban", "sudoku": "Sudoku"}


@dataclass(frozen=True)
class Row:
    """A row of the games.

    Attributes:
        words: Display name.
        run: Form of the experiment (`configs/planning.py`); PER_ROLE depends on the model.
        opponent: Row of the evaluation that counts.
        learns: Whether evaluations after training are shown.
    """

    words: str
    run: str
    opponent: str = "self"
    learns: bool = True


PER_ROLE = "per_role"
ROWS = {
    "single": Row("one agent", "grpo", learns=False),
    "grpo": Row("one agent + GRPO", "grpo"),
    "roles": Row("planner and executor, prompts only", "at_grpo", learns=False),
    "roles_grpo": Row("planner and executor + GRPO", "roles_grpo"),
    "at_grpo": Row("planner and executor + AT-GRPO, shared", "at_grpo"),
    "per_role": Row("planner and executor + AT-GRPO, per role", PER_ROLE),
    "swapped": Row("… the same, roles swapped", PER_ROLE, "swapped"),
}
SFT_STEPS = {"plan_path": 20, "sokoban": 40, "sudoku": 40}
"""Steps of imitation after which the embedded model solves a tenth to two fifths: a start with room to improve."""
LEVELS = 512


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this table."""
    trials.add_flags(parser)
    add = parser.add_argument
    add("--small", action="store_true", help="Use the small sizes of the embedded model for any model")
    add("--sft_steps", type=at_least(-1), default=-1, help="Number of imitation steps; 0 for none, -1 for the game's")
    add("--games", type=at_least(0), default=0, help="Number of concurrent games of one agent; other forms play fewer")
    add("--stop_when", type=float, default=0.0, help="Rate of right first completions that ends a team's run; 0: never")


def experiment(session: Session, game: str, form: str) -> str:
    """Return the experiment of a form."""
    if form == PER_ROLE:  # adapters on a random base learn little; copies of a large model need much memory
        form = "at_grpo_lora" if session.flags.model else "at_grpo_apart"
    small = "+small" if session.flags.small and session.flags.model else ""
    return f"experiments/{game}.py:{session.form(form)}{small}"


def size_of(session: Session, game: str, run: str) -> tuple[int, int, int]:
    """Return the numbers of updates, of concurrent games, and of completions at most.

    GRPO plays complete games only, so it leaves some of its room for completions empty.
    """
    path = experiment(session, game, run)
    config = config_of(path)
    steps, games = session.flags.steps or config.steps, config.rollout.num_envs
    if session.flags.games:
        games = session.flags.games // puzzles.fewer(path.partition(":")[2].split("+")[0])
    candidates = config.algo.group_size if config.algo.name == "at_grpo" else 1
    return steps, games, steps * games * config.rollout.unroll_length * candidates


def check(session: Session) -> None:
    """Exit unless all rows of a game that learn have the same budget."""
    wanted = [(game, row) for game, row in session.wanted if game in GAMES]
    budgets = {(game, row): size_of(session, game, ROWS[row].run)[2] for game, row in wanted}
    check_budgets("planning", budgets, "; --games must be a multiple of 32")


def plan(session: Session) -> Iterator[Run]:
    """Yield warm starts, the runs that begin from them, and the team's runs."""
    for game, row in session.wanted:
        for seed in range(session.flags.seeds) if game in GAMES else ():
            run, start, after = ROWS[row].run, [], ()
            common = [f"--config.eval.games={session.flags.problems or LEVELS}", *session.seeded(seed)]
            if sft_steps := warm_steps(session, game):
                form = "sft" if run == "grpo" else "roles_sft"
                command = [f"--config={experiment(session, game, form)}", *common, *session.for_tests()]
                command += steps_flags(config_of(experiment(session, game, form)), sft_steps)
                after = (name_of(game, form, seed),)
                start = [f"--config.model.init_from={session.folder / after[0]}"]
                yield Run(after[0], command, records.trained(sft_steps))
            steps, games, room = size_of(session, game, run)
            path = experiment(session, game, run)
            command = [f"--config={path}", *common, *start, *steps_flags(config_of(path), steps)]
            command += [f"--config.rollout.num_envs={games}", *session.passed]
            yield Run(name_of(game, run, seed), command, records.trained(steps), after, tokens=room)
    yield from trials.plan(session, team.SPEC, list(team.GAMES))


def name_of(game: str, run: str, seed: int) -> str:
    """Return the folder of a run."""
    return f"{game}/{run}-{seed}" if seed else f"{game}/{run}"


def warm_steps(session: Session, game: str) -> int:
    """Return the number of steps of imitation before a game's rows."""
    return SFT_STEPS[game] if session.flags.sft_steps < 0 else session.flags.sft_steps


def page(session: Session) -> Page | None:
    """Return the games' success before and after training, and the team's tables."""
    seeds, last = range(session.flags.seeds), team.page(session)
    figures, cells, games = [], {}, [game for game in GAMES if any(g == game for g, _ in session.wanted)]
    for seed in seeds:
        for game, row in session.wanted:
            if game in GAMES:
                folder = session.folder / name_of(game, ROWS[row].run, seed)
                before, after = _before_and_after(session, folder, ROWS[row])
                cells[game, row, seed] = f"{before or '–'} → **{after}**" if after else str(before or "–")
                title = GAMES[game] + (f", seed {seed}" if len(seeds) > 1 else "")
                figures.append(Figure(title, ROWS[row].words, after, before, {"seed": seed, **_used(session, folder)}))
    if not any(figure.value or figure.before for figure in figures):
        return last if last.lines else None
    several = f"; seeds 0 to {len(seeds) - 1}, one below the other." if len(seeds) > 1 else "."
    lines = [f"# Planning with {session.model()}", ""]
    lines += [
        f"Success on held-out levels in per cent, greedy, with 95 % intervals: before → after training{several}",
        "",
    ]
    rows = dict.fromkeys(row for game, row in session.wanted if game in GAMES)
    shown = [
        [ROWS[row].words, *("<br>".join(cells.get((g, row, s), "–") for s in seeds) for g in games)] for row in rows
    ]
    lines += markdown_table(["", *(GAMES[game] for game in games)], shown)
    return Page([*lines, *_notes(session, games), "", *last.lines], [*figures, *last.figures])


def _before_and_after(session: Session, folder: Path, row: Row) -> tuple[Rate | None, Rate | None]:
    """Return success before and after training; unfinished runs count with their last evaluation."""
    before = session.read(records.evaluation, folder, row.opponent, True)
    rows = session.read(records.evaluations, folder, default=[])
    later = row.learns and any(line["step"] for line in rows)
    return before, session.read(records.evaluation, folder, row.opponent) if later else None


def _used(session: Session, folder: Path) -> dict[str, int]:
    total = session.read(records.spent, folder, default={})
    return {"completions": int(total[max(total)].completions)} if total else {}


def _notes(session: Session, games: list[str]) -> Iterator[str]:
    for game in games:
        runs = dict.fromkeys(ROWS[row].run for g, row in session.wanted if g == game)
        folders = [session.folder / name_of(game, run, seed) for run in runs for seed in range(session.flags.seeds)]
        room = size_of(session, game, next(iter(runs)))[2]
        used = [f"{folder.name} {n['completions']:,}" for folder in folders if (n := _used(session, folder))]
        yield f"- {GAMES[game]}: rows that learn have room for {room:,} answers and sampled: {', '.join(used) or '–'}."
        floors = [session.read(records.evaluation, folder, "random alone", True) for folder in folders]
        for floor in [rate for rate in floors if rate][:1]:
            yield f"- {GAMES[game]}: random moves solve {floor}."
        if steps := warm_steps(session, game):
            yield f"- {GAMES[game]}: all rows start from {steps} steps of imitation of a solver on training levels."


GROUPS = {game: {row: about.words for row, about in ROWS.items()} for game in GAMES} | dict.fromkeys(
    team.GAMES, team.ROWS
)
TABLE = Table("planning", 3, __doc__, GROUPS, plan, page, add_flags, check)

if __name__ == "__main__":
    sys.exit(main(TABLE))
