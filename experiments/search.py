"""Search: a searcher looks for passages, a reader answers the question.

    python launch.py --config=experiments/search.py --config.steps=10                  # the embedded model, the sample
    python launch.py --config=experiments/search.py:at_grpo_shared+qwen2.5-coder-0.5b  # on a GPU
    python launch.py --config=experiments/search.py:single+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). All of them have at
most TURNS completions in an episode. Questions are those of SQuAD (`python -m envs.tasks.data.prepare squad`), and
otherwise those of a built-in sample. docs/search.md describes the task.

The embedded model is not pretrained and writes four bytes, too few for a query, so it learns nothing; the run only
shows that everything works.
"""

from configs import reasoning

TURNS = 3
ANSWERS = (TURNS, TURNS)
"""Maximum number of completions in an episode: of one agent, and of searcher and reader."""


def get_config(form: str | None = None):
    """Configure SQuAD, or the built-in sample for the embedded model."""
    config = reasoning.reasoning(
        "search", form, seats=("searcher", "reader"), answers=ANSWERS,
        params=dict(dataset="squad", passages="", turns=TURNS, k=3), single=dict(form="single"),
        roles=dict(form="roles"), small=dict(dataset="sample"), room=192 * TURNS, max_new_tokens=128,
    )  # fmt: skip
    config.name = "search"
    return config
