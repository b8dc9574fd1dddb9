r"""Questions with known answers from any dataset.

    python launch.py --config=experiments/question.py --config.steps=10             # the embedded model, the sample
    python launch.py --config=experiments/question.py:single_grpo+qwen2.5-0.5b \
        --config.task.params.train=train.jsonl --config.task.params.test=test.jsonl \
        --config.task.params.template='{problem}' --config.task.params.answer=solution \
        --config.task.params.comparison=number

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). Roles are a solver and
a checker. `docs/tasks.md` describes the format of datasets.

The embedded model is not pretrained and writes four bytes, too few for a box, so it learns nothing; the run only shows
that everything works.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, 2 * TURNS)
"""Maximum number of completions in an episode: of one agent, and of solver and checker."""


def get_config(form: str | None = None):
    """Configure a dataset by flags; without one, the built-in sample."""
    config = reasoning.reasoning(
        "question", form, seats=("solver", "checker"), answers=ANSWERS,
        params=dict(turns=TURNS, train="", validation="", test="", template="{question}", answer="answer",
                    options="", comparison="exact"),
        single=dict(agents="single"), roles=dict(agents="roles"), small={},
    )  # fmt: skip
    config.name = "question"
    return config
