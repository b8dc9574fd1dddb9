"""Natural language inference (ANLI): entailment, contradiction or neither.

    python launch.py --config=experiments/nli.py --config.steps=10                  # the embedded model
    python launch.py --config=experiments/nli.py:single_grpo+qwen2.5-0.5b           # on a GPU
    python launch.py --config=experiments/nli.py:roles_prompt+qwen2.5-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). Roles are a solver and
a checker. Examples are ANLI's if its files are in $MARL_JAX_DATA (CC BY-NC 4.0: not for commercial use), and otherwise
two dozen built-in ones. Checkpoints are chosen on its development set; its test set is for `--mode=eval`.

The embedded model is not pretrained and writes four bytes, too few for a box, so it learns nothing; the run only shows
that everything works.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, 2 * TURNS)
"""Maximum number of completions in an episode: of one agent, and of solver and checker."""


def get_config(form: str | None = None):
    """Configure ANLI, or the built-in examples."""
    config = reasoning.reasoning(
        "nli", form, seats=("solver", "checker"), answers=ANSWERS, params=dict(turns=TURNS),
        single=dict(agents="single"), roles=dict(agents="roles"), small={},
    )  # fmt: skip
    config.name = "nli"
    return config
