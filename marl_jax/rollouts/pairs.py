"""Pairs of completions from a file, as samples of preference algorithms and reward models.

A file has one JSON object per line, as in TRL:

    {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}
    {"prompt": [{"role": "user", "content": "2 + 2?"}], "chosen": [{"role": "assistant", "content": "4"}], …}

Pairs that cannot be learned from are left out and counted: equal or empty completions, and conversations with more than
`task.max_length` tokens.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from envs.tasks.data import DataError, from_jsonl
from envs.tasks.data.dataset import summary
from envs.tasks.task import check_split
from marl_jax.agents.verifier import ChatError, Message, Reading, read_chat
from marl_jax.devices import mesh as meshes
from marl_jax.errors import ConfigError, not_divisible
from marl_jax.rollouts import labelled
from marl_jax.rollouts.base import RunParts
from marl_jax.rollouts.labelled import Labelled, LabelledAnswers
from marl_jax.samples import Samples
from models.tokenizers import Tokenizer

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two completions of one prompt.

    Attributes:
        messages: The prompt as chat messages.
        chosen: Preferred completion.
        rejected: Other completion.
    """

    messages: tuple[Message, ...]
    chosen: str
    rejected: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Pair:
        """Read a line of a file, whose prompt and completions are texts or messages.

        Raises:
            ValueError: The line has another form.
        """
        missing = [name for name in ("prompt", "chosen", "rejected") if name not in row]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing, but a pair must have prompt, chosen and rejected")
        prompt = row["prompt"]
        messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
        return cls(messages, *(_text(name, row[name]) for name in ("chosen", "rejected")))


def _text(name: str, value: Any) -> str:
    """Return a completion that is a text or a list of one assistant message."""
    match value:
        case str():
            return value
        case [{"role": "assistant", "content": str() as content}]:
            return content
    raise ValueError(f"{name} is {value!r:.80}, but must be a string or a list of one assistant message")


def read_pairs(path: str) -> list[Pair]:
    """Read a file of pairs and report all lines that are not pairs together."""
    data, pairs, problems = from_jsonl(path), [], []
    for i in range(len(data)):
        try:
            pairs.append(Pair.from_row(data[i]))
        except (ValueError, TypeError) as error:
            problems.append(f"{data.where(i)}: {error}")
    if problems:
        raise DataError(summary(problems))
    return pairs


def tokenize(
    tokenizer: Tokenizer, pairs: Sequence[Pair], max_length: int, stop: bool
) -> tuple[list[Labelled], dict[str, int]]:
    """Tokenize pairs and leave out those that cannot be learned from.

    Args:
        tokenizer: Tokenizer of the model.
        pairs: The pairs.
        max_length: Maximum number of tokens of a conversation.
        stop: Whether completions end with a stop token, as sampled ones do.

    Returns:
        The chosen and the rejected completion of each pair in turn, and the number of pairs used and left out.

    Raises:
        DataError: A prompt is not a conversation that ends with a user message.
    """
    end = tuple(tokenizer.stop_ids[:1]) if stop else ()
    answers: list[Labelled] = []
    counts = collections.Counter(pairs=len(pairs))
    for number, pair in enumerate(pairs):
        chats = [(*pair.messages, {"role": "assistant", "content": text}) for text in (pair.chosen, pair.rejected)]
        try:
            sides = [read_chat(tokenizer, chat, sys.maxsize) for chat in chats]
        except ChatError as error:
            raise DataError(f"pair {number + 1}: {error}") from None
        if max(len(reading.tokens) for reading in sides) + len(end) > max_length:
            counts["too_long"] += 1
        elif not all(reading.completion_length for reading in sides):
            counts["empty"] += 1
        elif sides[0] == sides[1]:
            counts["equal"] += 1
        else:
            for reading, chosen in zip(sides, (True, False), strict=True):
                answers.append(Labelled(number, Reading(reading.tokens + end, reading.start), chosen))
            counts["used"] += 1
    return answers, dict(counts)


class PairRollout(LabelledAnswers):
    """A `Rollout` that reads the next pairs, in a new order every epoch.

    The reward of a chosen completion is 1, that of a rejected one 0. Tokens are predicted by the states before them.
    """

    together: ClassVar[int] = 2
    shift: ClassVar[int] = 1
    """Number of tokens before a completion token at which the model reads it."""

    def collate(self, batch: Sequence[Labelled], width: int, answer_width: int) -> Samples:
        """Build two rows for each pair, which form a group."""
        samples, (number, count) = labelled.collate(batch, width, answer_width), self.process
        rows = np.arange(samples.n, dtype=np.int32)[:, None]
        return samples.replace(
            group=(number * samples.n + rows) // 2, member=rows % 2, n_groups=count * samples.n // 2, group_size=2,
            rewards=np.array([one.right for one in batch], np.float32)[:, None, None],
            logits_index=np.maximum(samples.logits_index - self.shift, 0),
        )  # fmt: skip


class ScoredPairs(PairRollout):
    """The same for a reward model, which has a value at every completion token."""

    shift: ClassVar[int] = 0


def split_pairs(pairs: Sequence[Pair], part: str, held_out: float) -> list[Pair]:
    """Return the pairs of a split, which a checksum of the prompt decides.

    Args:
        pairs: All pairs.
        part: "train", "validation" or "test".
        held_out: Share of the prompts in validation and test together.
    """
    check_split(part)

    def place(pair: Pair) -> str:
        digest = hashlib.sha256(json.dumps([dict(message) for message in pair.messages]).encode()).digest()
        share = int.from_bytes(digest[:8]) / 2**64
        return "validation" if share < held_out / 2 else "test" if share < held_out else "train"

    return [pair for pair in pairs if place(pair) == part]


def pair_rollout(run: RunParts, pairs: Sequence[Pair], n_pairs: int, scored: bool = False) -> PairRollout:
    """Build the rollout of pairs from a file.

    Args:
        run: Parts of the run.
        pairs: The pairs.
        n_pairs: Number of pairs per step.
        scored: Whether a reward model reads the completions.

    Raises:
        DataError: There is no pair that can be learned from.
    """
    task, algo = run.task, run.algo
    assert task is not None
    parts = algo.minibatches * algo.grad_accum_steps * meshes.batch_shards(run.mesh)
    if n_pairs % parts:
        raise ConfigError([not_divisible("algo.n_pairs", n_pairs, parts, "the parts of a batch")])
    answers, counts = tokenize(task.tokenizers[0], pairs, run.config.task.max_length, stop=not scored)
    log.info("pairs: %s", ", ".join(f"{name} {count}" for name, count in counts.items()))
    if not answers:
        raise DataError(f"there is no pair to learn from: {counts}")
    kind = ScoredPairs if scored else PairRollout
    return kind(answers, 2 * n_pairs, run.config.seed, task.process, task.place, counts)
