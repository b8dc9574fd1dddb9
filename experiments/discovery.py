"""Discovery: an analyst writes the law of a table, a critic corrects it.

    python launch.py --config=experiments/discovery.py --config.steps=10                # the embedded model, the sample
    python launch.py --config=experiments/discovery.py:at_grpo_shared+qwen2.5-coder-0.5b  # on a GPU
    python launch.py --config=experiments/discovery.py:single+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). All of them write at
most TURNS programs in an episode, which run in a sandbox. Tables are those of DiscoveryBench
(`python -m envs.tasks.data.prepare discoverybench`), and otherwise a built-in sample. docs/discovery.md describes the
task.

The embedded model is not pretrained and writes four bytes, too few for a program, so it learns nothing; the run only
shows that everything works.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, TURNS)
"""Maximum number of completions in an episode: of one agent, and of analyst and critic."""


def get_config(form: str | None = None):
    """Configure DiscoveryBench, or the built-in sample for the embedded model."""
    config = reasoning.reasoning(
        "discovery", form, seats=("analyst", "critic"), answers=ANSWERS,
        params=dict(dataset="discoverybench", turns=TURNS, sandbox="auto"), single=dict(form="single"),
        roles=dict(form="roles"), small=dict(dataset="sample"), max_new_tokens=384,
    )  # fmt: skip
    config.name = "discovery"
    return config
