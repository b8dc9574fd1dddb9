r"""Debugging: a context agent plants bugs in working programs, and the learner repairs them.

    python launch.py --config=experiments/debugging.py                                       # the embedded model
    python launch.py --config=experiments/debugging.py:single+qwen2.5-coder-0.5b             # on a GPU
    python launch.py --config=experiments/debugging.py:multi_switch+qwen2.5-coder-0.5b
    python launch.py --config=experiments/debugging.py:multi_learning+qwen2.5-coder-0.5b
    python launch.py --config=experiments/debugging.py:prompt+qwen2.5-coder-0.5b --mode=eval

Bugs are planted in the solutions of MBPP; every bug is verified to break a test in the sandbox. The test split is
QuixBugs with its published bugs. Forms: `prompt` (for `--mode=eval`), `single` (the same bug for an example at every
step), `multi_fixed`, `multi_pool`, `multi_switch` (the default: operators, then names, then statements) and
`multi_learning` (a second policy plants); each optionally with +MODEL (`configs/partnered.py`, docs/partners.md).

    --config.task.params.goal=cooperative          # true hints, or adversarial for false ones
    --config.task.params.turns=1                   # one attempt, without seeing a failed test

The files of MBPP and QuixBugs are read from $MARL_JAX_DATA; without them a built-in sample is used. The embedded model
is not pretrained, so it writes no programs and learns nothing; the run only shows that everything works. Two steps and
an evaluation take about 40 seconds of CPU time.
"""

from configs import partnered

SEATS = ("learner", "planter")
TURNS = 2


def get_config(form: str | None = None):
    """Configure debugging with two attempts."""
    config = partnered.partnered(
        "debugging", form, partners=("operators", "names", "statements"), seats=SEATS, completions=(TURNS, TURNS),
        single=dict(partners=("operators",), static=True), learning=dict(form="model"), params=dict(turns=TURNS),
        small=dict(dataset="sample", test_dataset="sample"), max_new_tokens=400, max_length=2048,
    )  # fmt: skip
    config.name = "debugging"
    return config
