r"""Planning by a team: a tool agent writes programs, a plan agent decides on actions.

    python launch.py --config=experiments/planning_team.py                                      # the embedded model
    python launch.py --config=experiments/planning_team.py:at_grpo_shared+qwen2.5-coder-1.5b    # on a GPU
    python launch.py --config=experiments/planning_team.py:at_grpo_per_role+qwen2.5-coder-1.5b
    python launch.py --config=experiments/planning_team.py:prompt+qwen2.5-coder-1.5b --mode=eval

The team of the AT-GRPO paper on Plan-Path 10x10, Sokoban 6x6 with one box, or Sudoku 4x4, with up to 4 turns. Forms:
`single` (one agent without a tool), `single_tool` (one agent whose program's output acts) and `prompt` (the team), all
for `--mode=eval`; `single_grpo` and `tool_grpo` (one agent without and with the tool); `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_published`; each optionally with +MODEL (`configs/planning_team.py`). Levels come from
the games' pools, with disjoint train, validation and test splits. Programs run in a sandbox (docs/sandbox.md).

    --config.task.params.game=sokoban                     # or sudoku
    --config.task.params.size=8                           # another size than the published one
    --config.stop_when="task/plan_rate>=0.98"             # share of right lists among all candidates of first turns

With AT-GRPO, `success` in training counts the best of the candidates; evaluations sample one completion.

The embedded model plays up to 2 turns. It is not pretrained, so it writes no lists and learns nothing; the run only
shows that everything works. Two steps and two evaluations take half a minute of CPU time.
"""

from configs import planning_team


def get_config(form: str | None = None):
    """Configure Plan-Path 10x10."""
    config = planning_team.planning_team(form)
    config.name = "planning_team"
    return config
