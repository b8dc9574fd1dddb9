"""Multiple choice: science questions of ARC or SciQ, answered with a letter.

    python launch.py --config=experiments/multiple_choice.py --config.steps=10             # the embedded model
    python launch.py --config=experiments/multiple_choice.py:single_grpo+qwen2.5-0.5b      # ARC, on a GPU
    python launch.py --config=experiments/multiple_choice.py:single_grpo+qwen2.5-0.5b --config.task.name=sciq

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). Roles are a solver and
a checker. Files are found in $MARL_JAX_DATA (ARC is CC BY-SA 4.0; SciQ is CC BY-NC 3.0, not for commercial use).
Without them, there are two dozen built-in questions.

The embedded model is not pretrained; it answers with one byte and without a box. With `single_grpo` it learns to name
an option: in 40 steps, the most that was tried, such completions went from none to one in eight.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, 2 * TURNS)
"""Maximum number of completions in an episode: of one agent, and of solver and checker."""


def get_config(form: str | None = None):
    """Configure ARC, or the built-in questions."""
    config = reasoning.reasoning(
        "arc", form, seats=("solver", "checker"), answers=ANSWERS, params=dict(turns=TURNS),
        single=dict(agents="single"), roles=dict(agents="roles"),
        small=dict(form="text", system="Answer with the letter of an option."),
    )  # fmt: skip
    config.name = "multiple_choice"
    if config.model.name == "tiny":
        config.task.max_new_tokens = 1
    return config
