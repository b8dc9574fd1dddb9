"""Rows of the planning table with the AT-GRPO paper's team."""

from __future__ import annotations

from configs import planning_team as forms
from experiments.tables.intervals import mean
from experiments.tables.results import Results, grid
from experiments.tables.runner import Page, Session, config_of, markdown_table
from experiments.tables.trials import Spec, Test, Trial, steps_of

GAMES = {"team_plan_path": "Plan-Path 10x10", "team_sokoban": "Sokoban 6x6, one box", "team_sudoku": "Sudoku 4x4"}
ROWS = {
    "single": "one agent, no tool",
    "single_tool": "one agent with the tool",
    "prompt": "tool agent and plan agent, prompts only",
    "single_grpo": "one agent, no tool + GRPO",
    "tool_grpo": "one agent with the tool + GRPO",
    "at_grpo_shared": "tool agent and plan agent + AT-GRPO, shared",
    "at_grpo_per_role": "tool agent and plan agent + AT-GRPO, per role",
}
LEVELS = 512
PAPER = {
    "single": {"team_sudoku": "7, 48", "team_sokoban": "0, 9", "team_plan_path": "5, 12"},
    "single_grpo": {"team_sudoku": "29, 54", "team_sokoban": "3, 14", "team_plan_path": "11, 47"},
    "prompt": {"team_sudoku": "69, 72", "team_sokoban": "0, 16", "team_plan_path": "10, 71"},
    "at_grpo_shared": {"team_sudoku": "99, 99.5", "team_sokoban": "10, 96", "team_plan_path": "96, 93"},
    "at_grpo_per_role": {"team_sudoku": "99, 99", "team_sokoban": "11.5, 98", "team_plan_path": "97, 96"},
}
"""Success of Qwen3-1.7B and Qwen3-8B in per cent (arXiv 2510.11062)."""
INTRODUCTION = (
    "Success on held-out levels in per cent, greedy, with 95 % intervals over seeds and levels, and tokens per level. "
    "Tokens and completions of training are means over seeds until the tested checkpoint. The paper's "
    "figures are those of Qwen3-1.7B and 8B (arXiv 2510.11062), whose single agent has no tool."
)


def make(session: Session, game: str, row: str) -> Trial:
    """Return the trial of a row."""
    experiment, name = f"experiments/planning_team.py:{session.form(row)}", game.removeprefix("team_")
    config = config_of(experiment)
    steps = 0 if row in forms.UNTRAINED else steps_of(session, experiment)
    metric = "tool_rate" if forms.FORMS[row] == "tool" else "plan_rate"
    limit = session.flags.stop_when
    levels = session.flags.problems or (LEVELS if session.flags.model else config.eval.games)
    room = forms.answers_of(config)
    candidates = config.algo.group_size if config.algo.name == "at_grpo" else 1
    return Trial(
        game, row, experiment, steps, (steps * config.task.n_episodes * room, room // candidates),
        {"test": Test((f"--config.eval.games={levels}",), levels)}, (f"--config.task.params.game={name}",),
        (f"--config.stop_when=task/{metric}>={limit}",) if limit else (), {"task.params.game": name},
    )  # fmt: skip


STARTS = {"single_grpo": "single", "tool_grpo": "single_tool", "at_grpo_shared": "prompt", "at_grpo_per_role": "prompt"}
BASELINES = {row: ("tool_grpo" if row in STARTS else "single_tool",) for row in ROWS if "tool" not in row}
SPEC = Spec(make, lambda row: STARTS.get(row, ""), lambda row: BASELINES.get(row, ()))


def page(session: Session) -> Page:
    """Return two tables per game, and the means over games; no lines without results."""
    results = Results(session, SPEC, list(GAMES))
    lines, figures = [f"## Tool agent and plan agent with {session.model()}", "", INTRODUCTION, ""], []
    games = [game for game in GAMES if any(g == game for g, _, _ in results.cells)]
    for game in games:
        paper = {"paper": {row: by_game[game] for row, by_game in PAPER.items()}}
        lines += [f"### {GAMES[game]}", "", *results.summary(game, {"test": "success"}, paper)]
        lines += results.comparisons(game, {"test": GAMES[game]})
        figures += results.figures(game, {"test": GAMES[game]})
    means = []
    for row, words in ROWS.items():
        cells = [results.cells.get((game, row, "test")) for game in games]
        strata = [grid(cell.values) for cell in cells if cell]
        if len(strata) == len(games) > 1:
            means.append([words, mean([stratum for stratum in strata if stratum is not None])])
    lines += ["### Mean of the games", "", *markdown_table(["", "success"], means)] if means else []
    return Page(lines, figures) if games else Page([])
