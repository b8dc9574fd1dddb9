r"""Workflow search: edits are scored on validation questions, and the winner is tested.

    python launch.py --config=experiments/workflow_search.py --mode=search                          # the embedded model
    python launch.py --config=experiments/workflow_search.py:arithmetic+smollm2 --mode=search
    python launch.py --config=experiments/workflow_search.py:gsm8k+qwen2.5-coder-1.5b --mode=search      # on a GPU
    python launch.py --config=experiments/workflow_search.py:gsm8k+qwen2.5-coder-1.5b --mode=search \
        --config.search.editors="('http://127.0.0.1:8000/v1#editor','random')"

Forms: `arithmetic` (the default) and `gsm8k`, each optionally with +MODEL. The policy answers the questions, and edits
the workflow unless `search.editors` names a remote model; random edits get as many generated tokens. The table with
intervals is in search.md (docs/workflows.md). GSM8K is read from $MARL_JAX_DATA.

    python launch.py --config=experiments/workflow_search.py --config.task.params.workflow='[…]'    # trains the roles

The embedded model is not pretrained and writes four bytes, so none of its edits is JSON; the run only shows that
everything works, in about two minutes on two CPU cores.
"""

from configs import flows


def get_config(form: str | None = None):
    """Configure questions for a workflow, which starts with one step."""
    config = flows.workflow(form)
    config.name = "workflow_search"
    return config
