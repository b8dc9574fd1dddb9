"""Training of a verifier: a head that predicts whether a completion is right.

    python launch.py --config=experiments/verifier.py --mode=label --workdir=runs/labels
    python launch.py --config=experiments/verifier.py --workdir=runs/verifier --config.algo.data=runs/labels

The rollout reads labelled completions (`marl_jax/rollouts/labelled.py`). The loss is the binary cross-entropy of the
label and the sigmoid of the head, on the last half of the completion tokens. At earlier tokens the result is often
still open, and the last token alone gives little signal. The score of a completion is read at its last token, which
every choice of `label_tokens` includes.
"""

from __future__ import annotations

import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import verifier_config
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.algorithms.verifier_config import VerifierSettings
from marl_jax.devices import mesh as meshes
from marl_jax.errors import ConfigError, not_divisible
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts import labelled
from marl_jax.rollouts.base import RunParts
from marl_jax.samples import Samples

log = logging.getLogger(__name__)

FOLDER = "labelled"
"""Folder in the workdir that `--mode=label` writes to, with one file per split."""


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: VerifierSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Return the samples unchanged."""
    return samples, {}


def places(samples: Samples) -> jax.Array:
    """Return the index of each token in its completion, int32 [N, X].

    Rows have one completion, which starts at the first completion token.
    """
    return jnp.broadcast_to(jnp.arange(samples.width), samples.targets.shape)


def label_mask(samples: Samples, tokens: str) -> jax.Array:
    """Return float32 [N, X] with 1 on the tokens that carry the label.

    Args:
        samples: Labelled completions.
        tokens: Tokens with a label: "last_half", "all" or "last".
    """
    lengths = samples.completion_lengths
    first = {"last_half": lengths // 2, "all": jnp.zeros_like(lengths), "last": lengths - 1}[tokens]
    return (places(samples) >= first) * samples.mask()


class CrossEntropy(Objective):
    """The mean over completions of the mean binary cross-entropy of their labelled tokens."""

    def loss_weights_for(self, samples: Samples, algo: VerifierSettings) -> dict[str, jax.Array]:
        """Return the weights of labelled tokens and of last tokens.

        Each set of weights sums to 1 over a minibatch.
        """
        mask = label_mask(samples, algo.label_tokens)
        share = samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)
        each = share / jnp.maximum(samples.to_completions(mask), 1.0)
        last = label_mask(samples, "last")
        return {"label": mask * samples.to_tokens(each), "last": last * samples.to_tokens(share)}

    def loss(
        self, samples: Samples, weighed: dict, scores: Scores, algo: VerifierSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics.

        Metrics at the last token describe the score that users of the verifier see.
        """
        cross_entropy = optax.sigmoid_binary_cross_entropy(scores.values, samples.returns)
        loss = jnp.sum(weighed["label"] * cross_entropy)
        right = (scores.values > 0) == (samples.returns > 0.5)
        probability = jax.nn.sigmoid(scores.values)
        metrics = {
            "loss": loss,
            "last_token_loss": jnp.sum(weighed["last"] * cross_entropy),
            "accuracy": jnp.sum(weighed["last"] * right),
            "mean_score": jnp.sum(weighed["last"] * probability),
        }
        return loss, metrics


def folder(config: ConfigDict, workdir: Path | None) -> Path:
    """Return the folder of labelled completions: the run's own, or that of `algo.data`."""
    base = Path(config.algo.data).expanduser() if config.algo.data else workdir
    return (base or Path()) / FOLDER


def read_split(config: ConfigDict, workdir: Path | None, part: str) -> list[labelled.Question]:
    """Read the labelled questions of a split.

    Raises:
        DataError: The file does not exist or is incomplete.
    """
    path = folder(config, workdir) / f"{part}.jsonl"
    if not path.is_file():
        raise labelled.DataError(
            f"{path} does not exist; write it with --mode=label, or set algo.data to a run that has it"
        )
    header, questions = labelled.read_file(path)
    if not labelled.whole(header, questions):
        raise labelled.DataError(f"{path} is incomplete; complete it with --mode=label and the same --workdir")
    return questions[: wanted(config, part)]


def wanted(config: ConfigDict, part: str) -> int:
    """Return the maximum number of questions of a split to label or to use."""
    return config.algo.questions if part == "train" else config.algo.held_out


def choose(config: ConfigDict, questions: list[labelled.Question]) -> labelled.Balance:
    """Select the completions to train on."""
    a = config.algo
    return labelled.balance(questions, a.per_side, config.seed, balanced=a.balanced, gold=a.gold)


def rollout(run: RunParts) -> labelled.LabelledAnswers:
    """Build the rollout, which reads the labelled completions of the train split."""
    c, task = run.config, run.task
    assert task is not None
    parts = run.algo.minibatches * run.algo.grad_accum_steps * meshes.batch_shards(run.mesh)
    if c.algo.completions % parts:
        raise ConfigError([not_divisible("algo.completions", c.algo.completions, parts, "the parts of a batch")])
    readable = labelled.Readable(task.tokenizers[0], read_split(c, run.workdir, "train"), c.task.max_length)
    chosen = choose(c, readable.questions)
    counts = {**chosen.counts, "left_out": readable.left_out}
    log.info("labelled completions: %s", ", ".join(f"{name} {count}" for name, count in counts.items()))
    answers = readable.read(chosen.chosen)
    return labelled.LabelledAnswers(answers, c.algo.completions, c.seed, task.process, task.place, counts)


VERIFIER = Algorithm(
    "verifier",
    VerifierSettings,
    rollout,
    compute_advantages,
    CrossEntropy(),
    critic=True,
    check=verifier_config.check,
    verifies=("balanced", "natural"),
)
