r"""Math: a reasoner solves a problem, and a tool agent checks it with a program.

    python launch.py --config=experiments/math_reasoning.py                                  # the embedded model
    python launch.py --config=experiments/math_reasoning.py:single_grpo+qwen2.5-coder-0.5b   # on a GPU
    python launch.py --config=experiments/math_reasoning.py:roles_prompt+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). In the single forms one
agent does both. All forms have the same tool, the same turns and the same number of completions in an episode. Problems
are GSM8K's if its files are in $MARL_JAX_DATA, and otherwise 18 built-in ones. Programs run in a sandbox
(docs/sandbox.md).

    --config.task.params.dataset=math                                     # train on MATH
    --config.task.params.test_dataset=aime2025                            # evaluate on a contest
    --config.task.params.tool=False --config.task.params.turns=1          # `single_grpo`: plain GRPO, one completion
    --config.task.params.tool=False --config.task.params.answer=program   # `single_grpo`: the answer is a program

The embedded model uses the built-in problems. It is not pretrained, so it boxes no answer and learns nothing; the run
only shows that everything works. Two steps and two evaluations take half a minute of CPU time.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (2 * TURNS, 2 * TURNS)
"""Maximum number of completions in an episode: a solution and a program per turn, by one agent or by two."""


def get_config(form: str | None = None):
    """Configure GSM8K, or the built-in problems for the embedded model."""
    config = reasoning.reasoning(
        "math", form, seats=("reasoner", "tool_agent"), answers=ANSWERS,
        params=dict(dataset="gsm8k", test_dataset="", turns=TURNS), single=dict(form="single", tool=True),
        roles=dict(form="roles", tool=True), small=dict(dataset="sample", turns=1),
    )  # fmt: skip
    config.name = "math_reasoning"
    return config
