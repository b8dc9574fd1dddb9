r"""The half-blind executor: a scout describes the half that the executor cannot see.

    python launch.py --config=experiments/half_blind.py                                      # the embedded model
    python launch.py --config=experiments/half_blind.py:at_grpo_shared+qwen2.5-coder-1.5b    # on a GPU
    python launch.py --config=experiments/half_blind.py:at_grpo_per_role+smollm2
    python launch.py --config=experiments/half_blind.py:prompt+qwen2.5-coder-1.5b --mode=eval

Plan-Path 5x5 with the goal in the scout's half and the start in the executor's. The executor writes a program, which
runs in a sandbox (docs/sandbox.md). Only the list of moves that it prints counts, and it is played once. Forms:
`prompt` (the team), `seat` (one agent with the executor's view) and `all` (one agent that sees everything), all for
`--mode=eval`; `seat_grpo` and `all_grpo` (the same trained), `at_grpo_shared` (the default) and `at_grpo_per_role`;
each optionally with +MODEL (`configs/divided.py`). The best policy with the executor's view solves at most 26.8 % of
the test levels (docs/divided.md), the best team all of them.

    --config.task.params.answer=moves              # the executor writes the list itself
    --config.task.params.scout=map                 # the scout sees the complete grid
    --config.task.params.turns=2                   # the executor asks back; use fewer episodes, task.n_episodes
    --config.task.params.size=6

The embedded model is not pretrained, so it writes no lists and learns nothing; the run only shows that everything
works. Two steps and three evaluations take about 45 seconds of CPU time.
"""

from configs import divided

SEATS = ("scout", "executor")
COMPLETIONS = (1, 1)
"""Number of seats that write a message, and of seats that answer."""


def get_config(form: str | None = None):
    """Configure Plan-Path 5x5 for a scout and an executor."""
    config = divided.divided(
        "half_blind", form, seats=SEATS, completions=COMPLETIONS, max_length=1280, max_new_tokens=400,
        views={divided.TEAM: "team", divided.SEAT: "executor", divided.ALL: "all"},
        params=dict(scout="half", answer="program", turns=1, size=5),
        small=dict(answer="moves", n_train=64, n_validation=16, n_test=16),
    )  # fmt: skip
    config.name = "half_blind"
    return config
