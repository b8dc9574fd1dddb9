"""A verifier: supervised training of a head that says, at the tokens of an answer, how likely the answer is right.

    python launch.py --config=experiments/verifier.py --mode=label --workdir=runs/labels
    python launch.py --config=experiments/verifier.py --workdir=runs/verifier --config.algo.data=runs/labels

Its rollout reads labelled answers (`marl_jax/rollouts/labelled.py`). The loss is the binary cross-entropy of the head's
sigmoid with the label, on the last half of the answer's tokens: earlier ones often cannot know, and the last alone is
little to learn from. The score of an answer is read at its last token, which every choice of tokens includes.
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
"""Where in its workdir `--mode=label` writes, one file for each part."""


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: VerifierSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """The samples as they are."""
    return samples, {}


def places(samples: Samples) -> jax.Array:
    """int32 [N, X]: the number of each token within its answer; rows have one answer, which begins the row's tokens."""
    return jnp.broadcast_to(jnp.arange(samples.width), samples.targets.shape)


def label_mask(samples: Samples, tokens: str) -> jax.Array:
    """float32 [N, X]: 1 on the tokens of answers that carry the label; `tokens` is last_half, all or last."""
    lengths = samples.completion_lengths
    first = {"last_half": lengths // 2, "all": jnp.zeros_like(lengths), "last": lengths - 1}[tokens]
    return (places(samples) >= first) * samples.mask()


class CrossEntropy(Objective):
    """The mean over answers of the mean binary cross-entropy over the tokens with a label."""

    def loss_weights_for(self, samples: Samples, algo: VerifierSettings) -> dict[str, jax.Array]:
        """Weights of tokens, adding up to 1 over a minibatch: of those with a label, and of the last ones."""
        mask = label_mask(samples, algo.label_tokens)
        share = samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)
        each = share / jnp.maximum(samples.to_completions(mask), 1.0)
        last = label_mask(samples, "last")
        return {"label": mask * samples.to_tokens(each), "last": last * samples.to_tokens(share)}

    def loss(
        self, samples: Samples, weighed: dict, scores: Scores, algo: VerifierSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """The loss of some rows, and metrics; those at the last token are what a reader of the score sees."""
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
    """Where the labelled answers of a run lie: its own, or those of the run that `algo.data` names."""
    base = Path(config.algo.data).expanduser() if config.algo.data else workdir
    return (base or Path()) / FOLDER


def read_split(config: ConfigDict, workdir: Path | None, part: str) -> list[labelled.Question]:
    """The labelled questions of a part; a file that is missing or not whole is an error that says what to do."""
    path = folder(config, workdir) / f"{part}.jsonl"
    if not path.is_file():
        raise labelled.DataError(f"{path} does not exist; --mode=label writes it, or algo.data names a run that has it")
    header, questions = labelled.read_file(path)
    if not labelled.whole(header, questions):
        raise labelled.DataError(f"{path} is not whole; --mode=label with the same folder continues it")
    return questions[: wanted(config, part)]


def wanted(config: ConfigDict, part: str) -> int:
    """How many questions of a part a run labels, or takes of those that were labelled."""
    return config.algo.questions if part == "train" else config.algo.held_out


def choose(config: ConfigDict, questions: list[labelled.Question]) -> labelled.Balance:
    """The answers that a run learns from."""
    a = config.algo
    return labelled.balance(questions, a.per_side, config.seed, balanced=a.balanced, gold=a.gold)


def rollout(run: RunParts) -> labelled.LabelledAnswers:
    """Build the rollout: the labelled answers of the train part."""
    c, task = run.config, run.task
    assert task is not None
    parts = run.algo.minibatches * run.algo.grad_accum_steps * meshes.batch_shards(run.mesh)
    if c.algo.completions % parts:
        raise ConfigError([not_divisible("algo.completions", c.algo.completions, parts, "the parts of a batch")])
    readable = labelled.Readable(task.tokenizers[0], read_split(c, run.workdir, "train"), c.task.max_length)
    chosen = choose(c, readable.questions)
    counts = {**chosen.counts, "left_out": readable.left_out}
    log.info("labelled answers: %s", ", ".join(f"{name} {count}" for name, count in counts.items()))
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
    verifies=True,
)
