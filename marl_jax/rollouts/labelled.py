"""Labelled completions: their file format, a balanced selection and a rollout that reads them.

A file has a header line, followed by one line per question with all completions that were sampled for it:

    {"format": 1, "questions": 2000, "samples": 16, …}
    {"id": "…", "messages": [{role, content}, …], "answers": [{"text", "right", "gold"}, …], "failed": 0}

A verifier that sees more right completions of easy questions learns how hard a question is, not which completion is
right. So each question contributes as many right completions as wrong ones (`balance`). Questions that cannot do so are
dropped and counted.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envs.tasks.data import DataError, order
from marl_jax.agents.verifier import ChatError, Message, Reading, read_chat
from marl_jax.errors import RunError
from marl_jax.rollouts.host.sizes import bucket
from marl_jax.samples import Samples
from models.tokenizers import Tokenizer

FORMAT = 1
TOKEN_UNIT = 64


@dataclasses.dataclass(frozen=True)
class LabelledCompletion:
    """A completion with its label.

    Attributes:
        text: Text of the completion.
        right: Whether it is right.
        gold: Whether it is the reference solution of the dataset and not a sample.
    """

    text: str
    right: bool
    gold: bool = False


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its sampled completions.

    Attributes:
        id: Unique name of the question.
        messages: The question as chat messages.
        answers: Labelled completions.
        failed: Number of episodes without a completion: too long, aborted or failed.
    """

    id: str
    messages: tuple[Message, ...]
    answers: tuple[LabelledCompletion, ...]
    failed: int = 0

    def to_json(self) -> str:
        """Return the question as a line of a file."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A completion to train on or to score.

    Attributes:
        question: Number of its question.
        reading: Token ids of its conversation.
        right: Label of the completion.
    """

    question: int
    reading: Reading
    right: bool


def read_file(path: Path) -> tuple[dict[str, Any], list[Question]]:
    """Read the header and the questions of a file; a truncated last line is dropped."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; write it with --mode=label") from None
    header, questions = {}, []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines()):
        try:
            value = json.loads(line)
            if number:
                answers = tuple(
                    LabelledCompletion(a["text"], bool(a["right"]), bool(a["gold"])) for a in value["answers"]
                )
                questions.append(Question(value["id"], tuple(value["messages"]), answers, int(value["failed"])))
            elif value["format"] != FORMAT:
                raise ValueError(f"format is {value['format']!r}, but must be {FORMAT}")
            else:
                header = value
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path}, line {number + 1}: {type(error).__name__}: {error}") from None
    return header, questions


def whole(header: Mapping[str, Any], questions: Sequence[Question]) -> bool:
    """Return whether a file has all questions that its header announces."""
    return bool(header) and len(questions) >= header["questions"]


# ---------------------------------------------------------------------------------------------------------- balance


@dataclasses.dataclass
class Balance:
    """A selection of labelled completions.

    Attributes:
        chosen: Selected completions, each with the number of its question.
        counts: Numbers of questions, used questions, dropped questions by reason, and right, wrong and gold
            completions.
    """

    chosen: list[tuple[int, LabelledCompletion]]
    counts: dict[str, int]


def balance(
    questions: Sequence[Question], per_side: int, seed: int, *, balanced: bool = True, gold: bool = True
) -> Balance:
    """Select up to `per_side` right and as many wrong completions of every question.

    Duplicate texts count once.

    Args:
        questions: Questions to select from.
        per_side: Maximum number of right, and of wrong, completions per question.
        seed: Seed of the selection.
        balanced: False selects up to 2 · per_side samples regardless of their labels, for comparison.
        gold: Whether the reference solution may replace one missing right completion.
    """
    chosen: list[tuple[int, LabelledCompletion]] = []
    counts = collections.Counter(questions=len(questions))
    for number, question in enumerate(questions):
        draw = random.Random(f"{seed} {question.id}")
        sampled = {answer.text: answer for answer in question.answers if not answer.gold and answer.text.strip()}
        right = [answer for answer in sampled.values() if answer.right]
        wrong = [answer for answer in sampled.values() if not answer.right]
        if balanced:
            own = [answer for answer in question.answers if answer.gold and answer.text not in sampled]
            right += own[: gold and len(right) < min(len(wrong), per_side)]
            n = min(len(right), len(wrong), per_side)
            kept = draw.sample(right, n) + draw.sample(wrong, n)
        else:
            kept = draw.sample(list(sampled.values()), min(len(sampled), 2 * per_side))
        reason = "no_answers" if not sampled else "all_right" if right else "all_wrong"
        counts["used" if kept else f"dropped_{reason}"] += 1
        for answer in kept:
            counts["right" if answer.right else "wrong"] += 1
            counts["gold"] += answer.gold
        chosen += [(number, answer) for answer in kept]
    return Balance(chosen, dict(counts))


# ---------------------------------------------------------------------------------------------------------- reading


class Readable:
    """Questions with the completions that a verifier can read, and their token ids.

    Attributes:
        questions: Questions without completions that are empty or too long.
        left_out: Number of completions left out.
    """

    def __init__(self, tokenizer: Tokenizer, questions: Sequence[Question], max_length: int):
        self.questions: list[Question] = []
        self.left_out = 0
        self._readings: dict[tuple[int, str], Reading] = {}
        for number, question in enumerate(questions):
            kept = []
            for answer in question.answers:
                messages = (*question.messages, {"role": "assistant", "content": answer.text})
                with contextlib.suppress(ChatError):
                    reading = read_chat(tokenizer, messages, max_length)
                    if reading.completion_length:
                        self._readings[number, answer.text] = reading
                        kept.append(answer)
            self.left_out += len(question.answers) - len(kept)
            self.questions.append(dataclasses.replace(question, answers=tuple(kept)))

    def read(self, chosen: Sequence[tuple[int, LabelledCompletion]]) -> list[Labelled]:
        """Return the token ids and labels of the selected completions."""
        return [Labelled(n, self._readings[n, answer.text], answer.right) for n, answer in chosen]


# ---------------------------------------------------------------------------------------------------------- rollout


@dataclasses.dataclass(eq=False)
class LabelledAnswers:
    """A `Rollout` that reads the next `n` completions, in a new order every epoch.

    Attributes:
        answers: Completions to train on.
        n: Number of completions per step, over all processes.
        seed: Seed of the order.
        process: Index of this process and number of processes; each returns its share of the rows.
        place: Puts the samples of this process on the mesh, among those of all processes.
        counts: Counts of the selection; see `Balance`.
    """

    answers: Sequence[Labelled]
    n: int
    seed: int = 0
    process: tuple[int, int] = (0, 1)
    place: Callable[[Samples], Samples] = lambda samples: samples
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    jitted: ClassVar[bool] = False
    together: ClassVar[int] = 1
    """Number of consecutive completions that stay together in every order."""

    def __post_init__(self):
        if not self.answers:
            raise DataError("there are no labelled completions to train on")
        by = self.process[1] * self.together
        if self.n < 1 or self.n % by:
            raise ValueError(f"n is {self.n}, but must be a multiple of {by}, {self.together} for each process")

    def init(self, key: Any, params: Any) -> dict[str, Any]:
        """Return the state at the beginning of the data."""
        return {"seed": self.seed, "position": 0, "data": self.fingerprint}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Checksum of all completions, which must not change when a run resumes."""
        digest = hashlib.sha256()
        for one in self.answers:
            digest.update(repr((one.reading.tokens, one.reading.start, one.right)).encode())
        return digest.hexdigest()[:16]

    def __call__(self, params: Any, state: Mapping[str, Any], key: Any = None) -> tuple[Samples, dict, dict]:
        """Return the next completions; parameters and key are not used."""
        if state["data"] != self.fingerprint:
            raise RunError("the labelled completions have changed since this run started; choose another --workdir")
        seed, position, k = int(state["seed"]), int(state["position"]), self.together
        size, batch = len(self.answers) // k, []
        for i in range(position // k, (position + self.n) // k):
            epoch, index = divmod(i, size)
            first = order(seed, epoch, index, size) * k
            batch += self.answers[first : first + k]
        number, count = self.process
        share = self.n // count
        longest = max(len(one.reading.tokens) for one in batch)
        said = max(one.reading.completion_length for one in batch)
        samples = self.collate(
            batch[number * share : (number + 1) * share], bucket(longest, TOKEN_UNIT), bucket(said, TOKEN_UNIT)
        )
        metrics = {
            "completions": len(batch), "tokens": sum(len(one.reading.tokens) for one in batch),
            "right_share": sum(one.right for one in batch) / len(batch), "epoch": position / len(self.answers),
        }  # fmt: skip
        return self.place(samples), {**state, "position": position + self.n}, metrics

    def collate(self, batch: Sequence[Labelled], width: int, answer_width: int) -> Samples:
        """Build the rows of this process; see `collate`."""
        return collate(batch, width, answer_width)

    def after_update(self, state: dict[str, Any], params: Any, step: int) -> dict[str, Any]:
        """Return the state unchanged."""
        return state

    def changes_after(self, step: int) -> bool:
        """Return False: `after_update` never changes the state."""
        return False

    def checkpointed(self, step: int) -> None:
        """Do nothing: the state is all that is needed to resume."""

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""


def collate(batch: Sequence[Labelled], width: int, answer_width: int) -> Samples:
    """Build rows of `width` tokens with one completion each.

    `logits_index` are the positions of the completion's own tokens, and `returns` are the labels.
    """
    n = len(batch)
    tokens = np.zeros((n, width), np.int32)
    completion_of = np.full((n, answer_width), -1, np.int32)
    logits_index, targets = np.zeros((n, answer_width), np.int32), np.zeros((n, answer_width), np.int32)
    zeros, nothing = np.zeros((n, 1), np.int32), np.zeros((n, answer_width), np.float32)
    returns = nothing.copy()
    for row, one in enumerate(batch):
        ids, start, length = one.reading.tokens, one.reading.start, one.reading.completion_length
        tokens[row, : len(ids)] = ids
        completion_of[row, :length] = 0
        logits_index[row, :length], targets[row, :length] = np.arange(start, start + length), ids[start:]
        returns[row, :length] = one.right
    starts = np.array([[one.reading.start] for one in batch], np.int32)
    fields: dict[str, Any] = dict(
        tokens=tokens,
        positions=np.broadcast_to(np.arange(width, dtype=np.int32), tokens.shape).copy(),
        lengths=np.array([len(one.reading.tokens) for one in batch], np.int32),
        policy=np.zeros((n,), np.int32),
        completion_lengths=np.array([[one.reading.completion_length] for one in batch], np.int32),
        truncated=np.zeros((n, 1), bool),
        context_len=starts,
        seat=zeros, episode=zeros, turn=zeros, member=zeros,
        group=np.arange(n, dtype=np.int32)[:, None],
        ends=np.ones((n, 1), bool),
        loss_weights=np.ones((n, 1), np.float32),
        rewards=np.zeros((n, 1, 1), np.float32),
        completion_of=completion_of, logits_index=logits_index, targets=targets,
        logps=nothing, values=nothing, advantages=nothing, returns=returns,
        n_groups=n,
    )  # fmt: skip
    return Samples(**fields)
