"""Proposer and solver: one agent writes programs with inputs, another predicts their outputs.

    python launch.py --config=experiments/proposer.py --config.steps=10                    # the embedded model
    python launch.py --config=experiments/proposer.py:shared+qwen2.5-coder-1.5b            # on a GPU
    python launch.py --config=experiments/proposer.py:frozen_proposer+qwen2.5-coder-1.5b
    python launch.py --config=experiments/proposer.py:prompt+qwen2.5-coder-1.5b --mode=eval

Forms: `prompt` (for `--mode=eval`), `fixed` (published problems), `frozen_proposer`, `shared` (the default: one policy
for both roles) and `per_role`, each optionally with +MODEL (`configs/proposer.py`). All of them are tested on CRUXEval.

    --config.task.params.no_signal=-0.5     # as in the published code: problems that all or none solve cost 0.5

Published problems and those in the proposer's prompt are MBPP's; MBPP and CRUXEval are read from $MARL_JAX_DATA, and
replaced by a built-in sample if they are missing. The embedded model is not pretrained and writes four bytes, so every
proposal is invalid and no group has different rewards; the run only shows that everything works.
"""

from configs import proposer


def get_config(form: str | None = None):
    """Configure proposer and solver."""
    config = proposer.proposer(form)
    config.name = "proposer"
    return config
