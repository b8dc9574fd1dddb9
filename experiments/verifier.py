"""A verifier that predicts whether answers are right, trained on labelled answers.

    python launch.py --config=experiments/verifier.py:gsm8k+qwen2.5-coder-0.5b --mode=label --workdir=runs/labels
    python launch.py --config=experiments/verifier.py:gsm8k+qwen2.5-coder-0.5b --workdir=runs/verifier \
        --config.algo.data=runs/labels             # with --config.algo.balanced=False, unbalanced for comparison
    python launch.py --workdir=runs/verifier --mode=eval             # accuracy, calibration and AUC on the test split
    python launch.py --workdir=runs/verifier --mode=serve_reward     # scores over HTTP, see docs/verifier.md

    python launch.py --config=experiments/verifier.py --mode=label   # the embedded model, two CPU cores: half a minute,
    python launch.py --config=experiments/verifier.py                # and a minute

A model's own answers are sampled and labelled (`--mode=label`), balanced per question, and used for training. Every
step resumes where it was stopped. Forms: `gsm8k`, `math`, `anli` or `arithmetic` (the default), each optionally with
+MODEL (`configs/verifier.py`). The embedded model is not pretrained: none of its answers are right, so all right ones
are gold answers, and the run only shows that everything works.
"""

from configs import verifier


def get_config(form: str | None = None):
    """Configure a verifier: LoRA and a head, or all weights of the embedded model."""
    config = verifier.verifier(form)
    config.name = "verifier"
    return config
