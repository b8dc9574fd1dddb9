"""Poker table: exploitability of self-play with and without magnet and seat baselines.

    python -m experiments.tables.poker                                   # the embedded model, one run at a time
    python -m experiments.tables.poker --jobs=8                          # on a machine with more cores
    python -m experiments.tables.poker --only=kuhn/magnet,kuhn/ppo --seeds=3

Every form is run with several seeds. Each run is a separate `launch.py` with its own folder under --workdir, so the
same command continues where it was stopped and collects finished runs. `--config.FIELD=VALUE` goes to every run.

The table is written to poker.md and poker.svg in --workdir. The figures are exact for each policy; only the seeds
differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.tables.charts import Curve, curve_chart
from experiments.tables.command import add_flags, at_least, finish, read_flags, run_rounds, select
from experiments.tables.runs import Runs, evaluations, is_done

GAMES = {"kuhn": "Kuhn", "leduc": "Leduc"}
WORDS = {
    "ppo": "PPO",
    "magnet": "PPO, magnet",
    "role": "PPO, role baselines",
    "magnet_role": "PPO, magnet and role baselines",
}
SHORT = {"ppo": "PPO", "magnet": "magnet", "role": "role", "magnet_role": "magnet and role"}
GOALS = {"Kuhn": 0.05}


@dataclasses.dataclass(frozen=True)
class Result:
    """Exploitability of one run at its evaluations, and its last NashConv."""

    game: str
    form: str
    seed: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    nash_conv: float | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "poker")
    parser.add_argument("--only", default="", help="Rows as GAME/FORM or GAME, separated by commas")
    parser.add_argument(
        "--seeds", type=at_least(1), default=2, help="Number of runs of every row, with the seeds 0, 1, …"
    )
    flags, passed = read_flags(parser, "poker", argv)
    wanted, folder = select("poker", flags.only, GAMES, WORDS), Path(flags.workdir)
    failed, stopped = ([], False) if flags.collect else run_rounds(plan(flags, wanted, passed), folder, flags.jobs)
    results = list(collect(flags, wanted))
    if flags.collect and not any(result.steps for result in results):
        raise SystemExit(f"poker.py: {folder} has no runs to collect")
    return finish("poker", folder, markdown(results), drawing(results), failed, stopped)


def plan(flags: argparse.Namespace, wanted: Sequence[tuple[str, str]], passed: Sequence[str]) -> Iterator[Runs]:
    """Yield all runs in one round."""
    runs = {}
    for game, form in wanted:
        steps = flags.steps or config_of(flags, game, form).steps
        for seed in range(flags.seeds):
            variant = form + (f"+{flags.model}" if flags.model else "")
            command = [f"--config=experiments/{game}.py:{variant}", f"--config.seed={seed}", f"--config.steps={steps}"]
            name = name_of(game, form, seed)
            runs[name] = ([*command, *passed], is_done(Path(flags.workdir) / name, steps))
    yield runs


def config_of(flags: argparse.Namespace, game: str, form: str):
    """Return the config of a row."""
    experiment = importlib.import_module(f"experiments.{game}")
    return experiment.get_config(form + (f"+{flags.model}" if flags.model else ""))


def name_of(game: str, form: str, seed: int) -> str:
    """Return the folder of a run."""
    return f"{game}-{form}-{seed}"


def collect(flags: argparse.Namespace, wanted: Sequence[tuple[str, str]]) -> Iterator[Result]:
    """Yield the results of the runs so far."""
    for game, form in wanted:
        for seed in range(flags.seeds):
            rows = evaluations(Path(flags.workdir) / name_of(game, form, seed))
            rows = [row for row in rows if row["opponent"] == "best_response"]
            steps, values = (tuple(row[key] for row in rows) for key in ("step", "exploitability"))
            yield Result(game, form, seed, steps, values, rows[-1]["nash_conv"] if rows else None)


def markdown(results: Sequence[Result]) -> str:
    """Return the table: exploitability before and after training, and its minimum, per seed."""
    lines = ["| game | | updates | before | after | NashConv after | least on the way |", "| --- " * 7 + "|"]
    for game, form in dict.fromkeys((result.game, result.form) for result in results):
        own = [result for result in results if (result.game, result.form) == (game, form) and result.steps]
        if not own:
            continue
        cells = [
            GAMES[game],
            WORDS[form],
            ", ".join(dict.fromkeys(str(result.steps[-1]) for result in own)),
            ", ".join(f"{result.values[0]:.3f}" for result in own),
            ", ".join(f"**{result.values[-1]:.3f}**" for result in own),
            ", ".join(f"{result.nash_conv:.3f}" for result in own),
            ", ".join(f"{min(result.values):.3f}" for result in own),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drawing(results: Sequence[Result]) -> str:
    """Draw the curves, with a panel for each game."""
    panels = {
        GAMES[game]: [Curve(SHORT[r.form], r.steps, r.values) for r in results if r.game == game]
        for game in dict.fromkeys(result.game for result in results)
    }
    return curve_chart(panels, "updates", GOALS)


if __name__ == "__main__":
    raise SystemExit(main())
