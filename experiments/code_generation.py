"""Code: a coder writes a program, a tester writes test cases, hidden tests decide.

    python launch.py --config=experiments/code_generation.py --config.steps=10                # the embedded model
    python launch.py --config=experiments/code_generation.py:single_grpo+qwen2.5-coder-0.5b   # on a GPU
    python launch.py --config=experiments/code_generation.py:roles_prompt+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). Problems are MBPP's if
its file is in $MARL_JAX_DATA, and otherwise a dozen built-in ones; `--config.task.params.test_dataset=humaneval`
evaluates on another dataset. Programs run in a sandbox (`envs/tasks/sandbox`). On a machine without isolation, a run
ends immediately.

The embedded model uses the built-in problems. It is not pretrained, so it writes no program and learns nothing; the run
only shows that everything works. Its first three steps take less than a minute on two CPU cores.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, 2 * TURNS)
"""Maximum number of completions in an episode: of one agent, and of coder and tester."""
SECONDS = 0.5
"""CPU time of a program in training, where a step waits for the slowest; evaluations allow 4 s (docs/code.md)."""


def get_config(form: str | None = None):
    """Configure MBPP, or the built-in problems for the embedded model."""
    config = reasoning.reasoning(
        "code", form, seats=("coder", "tester"), answers=ANSWERS,
        params=dict(dataset="mbpp", test_dataset="", turns=TURNS, reward="paper", sandbox="auto", seconds=SECONDS),
        single=dict(form="single"), roles=dict(form="roles"),
        small=dict(dataset="sample"),
    )  # fmt: skip
    config.name = "code_generation"
    return config
