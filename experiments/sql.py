"""SQL: a writer answers questions about databases with queries, a checker corrects them.

    python launch.py --config=experiments/sql.py --config.steps=10                  # the embedded model, the sample
    python launch.py --config=experiments/sql.py:at_grpo_shared+qwen2.5-coder-0.5b  # on a GPU
    python launch.py --config=experiments/sql.py:single+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). All of them write at
most TURNS queries in an episode. Questions are those of sql-eval (`python -m envs.tasks.data.prepare sqleval`), and
otherwise a built-in sample. docs/sql.md describes the task.

The embedded model is not pretrained and writes four bytes, too few for a query, so it learns nothing; the run only
shows that everything works.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, TURNS)
"""Maximum number of completions in an episode: of one agent, and of writer and checker."""


def get_config(form: str | None = None):
    """Configure sql-eval, or the built-in sample for the embedded model."""
    config = reasoning.reasoning(
        "sql", form, seats=("writer", "checker"), answers=ANSWERS, params=dict(dataset="sqleval", turns=TURNS),
        single=dict(form="single"), roles=dict(form="roles"), small=dict(dataset="sample"), max_new_tokens=256,
    )  # fmt: skip
    config.name = "sql"
    return config
