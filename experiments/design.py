"""Design: one agent writes workflows as JSON, another executes them.

    python launch.py --config=experiments/design.py --config.steps=10                  # the embedded model
    python launch.py --config=experiments/design.py:per_role+qwen2.5-coder-1.5b        # on a GPU
    python launch.py --config=experiments/design.py:prompt+qwen2.5-coder-1.5b --mode=eval

Forms: `prompt` (for `--mode=eval`), `fixed` (an executor of the workflow with one step), `shared` (one policy for both
roles) and `per_role` (the default), each optionally with +MODEL (`configs/flows.py`). Designer and executor are trained
in turn, ten steps each, as in MetaAgent-X:

    --config.algo.seat_block=0                        # both at once
    --config.task.params.dataset=arithmetic           # instead of GSM8K, which is read from $MARL_JAX_DATA

The embedded model is not pretrained and writes four bytes, so every design is rejected; the run only shows that
everything works.
"""

from configs import flows


def get_config(form: str | None = None):
    """Configure designer and executor."""
    config = flows.design(form)
    config.name = "design"
    return config
