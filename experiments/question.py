r"""Questions with known answers, of any dataset.

    python launch.py --config=experiments/question.py --config.steps=10             # the embedded model, the sample
    python launch.py --config=experiments/question.py:single_grpo+qwen2.5-0.5b \
        --config.task.params.train=train.jsonl --config.task.params.test=test.jsonl \
        --config.task.params.template='{problem}' --config.task.params.answer=solution \
        --config.task.params.comparison=number

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default) and
`at_grpo_per_role`, each with or without +MODEL (`configs/reasoning.py`). Roles are a solver and a checker. What a
dataset needs stands in `docs/tasks.md`.

The embedded model has never read a word and writes four bytes, too few for a box, so it learns nothing; the run shows
that everything works.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, 2 * TURNS)
"""Answers of an episode at most: of one agent, and of solver and checker."""


def get_config(form: str | None = None):
    """A dataset by config; without one, the built-in sample."""
    config = reasoning.reasoning(
        "question", form, seats=("solver", "checker"), answers=ANSWERS,
        params=dict(turns=TURNS, train="", validation="", test="", template="{question}", answer="answer",
                    options="", comparison="exact"),
        single=dict(agents="single"), roles=dict(agents="roles"), small={},
    )  # fmt: skip
    config.name = "question"
    return config
