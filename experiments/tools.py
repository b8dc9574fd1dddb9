"""Tools: an agent, or caller and reader, answer with a calculator and a table.

    python launch.py --config=experiments/tools.py --config.steps=10                     # the embedded model
    python launch.py --config=experiments/tools.py:single_grpo+qwen2.5-coder-0.5b        # on a GPU
    python launch.py --config=experiments/tools.py:roles_prompt+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). All of them have at
most TURNS completions in an episode. docs/tools.md describes the task, and how to add tools and MCP servers.

The embedded model is not pretrained and writes four bytes, too few for a call, so it learns nothing; the run only
shows that everything works.
"""

from configs import reasoning

TURNS = 4
ANSWERS = (TURNS, TURNS)
"""Maximum number of completions in an episode: of one agent, and of caller and reader."""


def get_config(form: str | None = None):
    """Configure the built-in sample."""
    config = reasoning.reasoning(
        "tools", form, seats=("caller", "reader"), answers=ANSWERS, params=dict(dataset="sample", turns=TURNS),
        single=dict(form="single"), roles=dict(form="roles"), small={}, room=128 * TURNS, max_new_tokens=192,
    )  # fmt: skip
    config.name = "tools"
    if "coder" in config.model.name:
        config.task.tool_format = "fenced"  # Qwen2.5-Coder writes JSON without tags
    return config
