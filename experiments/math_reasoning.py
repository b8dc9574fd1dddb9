r"""Math: a reasoner solves a problem, a tool agent checks it with a program; or one agent does both.

    python launch.py --config=experiments/math_reasoning.py                                  # the embedded model
    python launch.py --config=experiments/math_reasoning.py:single_grpo+qwen2.5-coder-0.5b   # on a GPU
    python launch.py --config=experiments/math_reasoning.py:roles_prompt+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default) and
`at_grpo_per_role`, each with or without +MODEL (`configs/reasoning.py`). All have the same tool, the same turns and the
same number of answers in an episode. Problems are GSM8K's where its files are found in $MARL_JAX_DATA, and otherwise 18
built-in ones. Programs run in a sandbox (docs/sandbox.md).

    --config.task.params.dataset=math                                     trains on MATH
    --config.task.params.test_dataset=aime2025                            evaluates on a contest
    --config.task.params.tool=False --config.task.params.turns=1          `single_grpo`: plain GRPO, one answer each
    --config.task.params.tool=False --config.task.params.answer=program   `single_grpo`: the answer is a program

The embedded model works on the built-in problems. It has never read a word, so it boxes no answer and learns nothing;
the run shows that everything works. Two steps and two evaluations take half a minute of CPU time.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (2 * TURNS, 2 * TURNS)
"""Answers of an episode at most: a solution and a program in every turn, by one agent or by two."""


def get_config(form: str | None = None):
    """GSM8K, or the built-in problems for the embedded model."""
    config = reasoning.reasoning(
        "math", form, seats=("reasoner", "tool_agent"), answers=ANSWERS,
        params=dict(dataset="gsm8k", test_dataset="", turns=TURNS), single=dict(form="single", tool=True),
        roles=dict(form="roles", tool=True), small=dict(dataset="sample", turns=1),
    )  # fmt: skip
    config.name = "math_reasoning"
    return config
