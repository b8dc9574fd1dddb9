"""A verifier: how likely an answer is right, learnt from a model's own answers and their labels.

    python launch.py --config=experiments/verifier.py:gsm8k+qwen2.5-coder-0.5b --mode=label --workdir=runs/labels
    python launch.py --config=experiments/verifier.py:gsm8k+qwen2.5-coder-0.5b --workdir=runs/verifier \
        --config.algo.data=runs/labels             # with --config.algo.balanced=False, unbalanced for comparison
    python launch.py --workdir=runs/verifier --mode=eval             # accuracy, calibration and AUC on the test part
    python launch.py --workdir=runs/verifier --mode=serve_reward     # scores over HTTP, see docs/verifier.md

    python launch.py --config=experiments/verifier.py --mode=label   # the embedded model, two CPU cores: half a minute,
    python launch.py --config=experiments/verifier.py                # and a minute

Three steps, each of which continues where it was stopped: sample and label (`--mode=label`), balance per question and
train. Forms: `gsm8k`, `math`, `anli` or `arithmetic` (the default), each with or without +MODEL
(`configs/verifier.py`). The embedded model has never read a word: none of its answers are right, so all right ones are
gold, and the run shows that everything works, no more.
"""

from configs import verifier


def get_config(form: str | None = None):
    """A verifier with LoRA and a head, or of the embedded model, all of it."""
    config = verifier.verifier(form)
    config.name = "verifier"
    return config
