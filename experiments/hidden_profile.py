r"""Hidden-profile questions: the shared facts favour a wrong option, all facts together the right one.

    python launch.py --config=experiments/hidden_profile.py                                     # the embedded model
    python launch.py --config=experiments/hidden_profile.py:at_grpo_shared+qwen2.5-coder-1.5b   # on a GPU
    python launch.py --config=experiments/hidden_profile.py:at_grpo_per_role+smollm2
    python launch.py --config=experiments/hidden_profile.py:prompt+qwen2.5-coder-1.5b --mode=eval

Two seats hold different facts about four options, write each other one message and vote. A seat answers by a program
that unites the lists, which runs in a sandbox (docs/sandbox.md). Forms: `prompt` (the team),
`seat` (one agent with the facts of one seat) and `all` (one agent with all facts), all for `--mode=eval`; `seat_grpo`
and `all_grpo` (the same trained), `at_grpo_shared` (the default) and `at_grpo_per_role`; each optionally with +MODEL
(`configs/divided.py`). With one seat's facts at most 1 of 3 questions can be answered, and the obvious answer is always
wrong (docs/divided.md).

    --config.task.params.answer=lists              # a seat unites the lists itself
    --config.task.params.options=3                 # one agent with one seat's facts then gets at most 1 of 2
    --config.task.params.seats=3                   # only without at_grpo_per_role; use fewer episodes, task.n_episodes

The embedded model is not pretrained, so it gives no answers and learns nothing; the run only shows that everything
works. Two steps and three evaluations take about 45 seconds of CPU time.
"""

from configs import divided

SEATS = ("ada", "ben")
COMPLETIONS = (2, 2)
"""Number of seats that write a message, and of seats that answer."""


def get_config(form: str | None = None):
    """Configure questions with four options for two seats."""
    config = divided.divided(
        "hidden_profile", form, seats=SEATS, completions=COMPLETIONS, max_length=1280, max_new_tokens=400,
        views={divided.TEAM: "team", divided.SEAT: "seat", divided.ALL: "all"},
        params=dict(seats=len(SEATS), options=4, answer="program", turns=1),
        small=dict(answer="lists", n_train=64, n_validation=16, n_test=16),
    )  # fmt: skip
    config.name = "hidden_profile"
    return config
