"""Verilog: a coder writes a hardware module, a reviewer corrects it.

    python launch.py --config=experiments/verilog.py --config.steps=10                  # the embedded model, the sample
    python launch.py --config=experiments/verilog.py:at_grpo_shared+qwen2.5-coder-0.5b  # on a GPU
    python launch.py --config=experiments/verilog.py:single+qwen2.5-coder-0.5b --mode=eval

Forms: `single` and `roles_prompt` (for `--mode=eval`), `single_grpo`, `roles_grpo`, `at_grpo_shared` (the default),
`at_grpo_per_role` and `at_grpo_separate`, each optionally with +MODEL (`configs/reasoning.py`). All of them write at
most TURNS modules in an episode, which are compiled and simulated in a sandbox; this needs the package iverilog.
Problems are those of VerilogEval v2 (`python -m envs.tasks.data.prepare verilogeval`), and otherwise a built-in sample.
docs/verilog.md describes the task.

The embedded model is not pretrained and writes four bytes, too few for a module, so it learns nothing; the run only
shows that everything works.
"""

from configs import reasoning

TURNS = 2
ANSWERS = (TURNS, TURNS)
"""Maximum number of completions in an episode: of one agent, and of coder and reviewer."""


def get_config(form: str | None = None):
    """Configure VerilogEval, or the built-in sample for the embedded model."""
    config = reasoning.reasoning(
        "verilog", form, seats=("coder", "reviewer"), answers=ANSWERS,
        params=dict(dataset="verilogeval", turns=TURNS, sandbox="auto"), single=dict(form="single"),
        roles=dict(form="roles"), small=dict(dataset="sample"), max_new_tokens=768,
    )  # fmt: skip
    config.name = "verilog"
    return config
