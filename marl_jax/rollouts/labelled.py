"""Labelled answers: files of sampled answers with their labels, a balanced choice of them, and a rollout that reads it.

A file has a header and then one question per line, with all answers that were sampled to it:

    {"format": 1, "questions": 2000, "samples": 16, …}
    {"id": "…", "messages": [{role, content}, …], "answers": [{"text", "right", "gold"}, …], "failed": 0}

A verifier that sees more right answers to easy questions learns how hard a question is, not which answer is right. So
each question gives as many right answers as wrong ones (`balance`), and a question that cannot is dropped and counted.
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
from typing import Any

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
    """An answer, whether it is right, and whether it is the dataset's own solution and not a sample."""

    text: str
    right: bool
    gold: bool = False


@dataclasses.dataclass(frozen=True)
class Question:
    """What was asked, as messages, and the answers to it; `id` tells questions apart.

    failed  episodes without an answer: too long, ended, or broken
    """

    id: str
    messages: tuple[Message, ...]
    answers: tuple[LabelledCompletion, ...]
    failed: int = 0

    def to_json(self) -> str:
        """A line of a file."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Labelled:
    """One answer to learn from or to score: the number of its question, its chat, its label."""

    question: int
    reading: Reading
    right: bool


def read_file(path: Path) -> tuple[dict[str, Any], list[Question]]:
    """The header and the questions of a file; a last line that was cut short is dropped."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; --mode=label writes it") from None
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
                raise ValueError(f"format is {value['format']!r}; expected {FORMAT}")
            else:
                header = value
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path}, line {number + 1}: {type(error).__name__}: {error}") from None
    return header, questions


def whole(header: Mapping[str, Any], questions: Sequence[Question]) -> bool:
    """Whether a file has all questions that its header promises."""
    return bool(header) and len(questions) >= header["questions"]


# ---------------------------------------------------------------------------------------------------------- balance


@dataclasses.dataclass
class Balance:
    """What was chosen of the questions' answers.

    chosen   (number of the question, answer) of every answer
    counts   questions, those used, those dropped by reason, answers right and wrong, gold ones among them
    """

    chosen: list[tuple[int, LabelledCompletion]]
    counts: dict[str, int]


def balance(
    questions: Sequence[Question], per_side: int, seed: int, *, balanced: bool = True, gold: bool = True
) -> Balance:
    """Up to `per_side` right and as many wrong answers to every question, drawn by the seed; equal texts count once.

    balanced  False takes up to 2 · per_side answers as they come, for comparison; none is a gold one
    gold      the dataset's own solution takes the place of one missing right answer
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
    """Questions with those of their answers that a verifier can read, and how it reads them.

    questions  without answers that are empty or too long
    left_out   how many these were
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
        """Some of the answers, with the numbers of their questions, as token ids."""
        return [Labelled(n, self._readings[n, answer.text], answer.right) for n, answer in chosen]


# ---------------------------------------------------------------------------------------------------------- rollout


@dataclasses.dataclass(eq=False)
class LabelledAnswers:
    """A `Rollout` that reads: every step gives the next `n` answers, epoch after epoch in a new order.

    answers       all of them
    n             of a step, of all processes together
    seed          of the order
    process       (number of this process, how many there are); each gives its share of the rows
    place         puts the samples of this process where the learner finds those of all
    counts        how the answers were chosen
    """

    answers: Sequence[Labelled]
    n: int
    seed: int = 0
    process: tuple[int, int] = (0, 1)
    place: Callable[[Samples], Samples] = lambda samples: samples
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    jitted = False

    def __post_init__(self):
        if not self.answers:
            raise DataError("there are no labelled answers to learn from")
        if self.n < 1 or self.n % self.process[1]:
            raise ValueError(f"n is {self.n}; accepted: multiples of the {self.process[1]} processes")

    def init(self, key: Any, params: Any) -> dict[str, Any]:
        """The beginning of the data."""
        return {"seed": self.seed, "position": 0, "data": self.fingerprint}

    @functools.cached_property
    def fingerprint(self) -> str:
        """A checksum of all answers: a run continues with those it began with."""
        digest = hashlib.sha256()
        for one in self.answers:
            digest.update(repr((one.reading.tokens, one.reading.start, one.right)).encode())
        return digest.hexdigest()[:16]

    def __call__(self, params: Any, state: Mapping[str, Any], key: Any = None) -> tuple[Samples, dict, dict]:
        """The next answers; neither parameters nor key matter."""
        if state["data"] != self.fingerprint:
            raise RunError("the labelled answers are not those with which this run began; choose another --workdir")
        seed, position, size = int(state["seed"]), int(state["position"]), len(self.answers)
        batch = []
        for i in range(position, position + self.n):
            epoch, index = divmod(i, size)
            batch.append(self.answers[order(seed, epoch, index, size)])
        number, count = self.process
        share = self.n // count
        longest = max(len(one.reading.tokens) for one in batch)
        said = max(one.reading.completion_length for one in batch)
        samples = collate(
            batch[number * share : (number + 1) * share], bucket(longest, TOKEN_UNIT), bucket(said, TOKEN_UNIT)
        )
        metrics = {
            "completions": len(batch), "tokens": sum(len(one.reading.tokens) for one in batch),
            "right_share": sum(one.right for one in batch) / len(batch), "epoch": position / size,
        }  # fmt: skip
        return self.place(samples), {**state, "position": position + self.n}, metrics

    def after_update(self, state: dict[str, Any], params: Any, step: int) -> dict[str, Any]:
        """Nothing to do."""
        return state

    def changes_after(self, step: int) -> bool:
        """Whether `after_update` has anything to do after this step: never."""
        return False

    def checkpointed(self, step: int) -> None:
        """Nothing is kept for resuming but the state."""

    def close(self) -> None:
        """Nothing has to be ended."""


def collate(batch: Sequence[Labelled], width: int, answer_width: int) -> Samples:
    """Rows of `width` tokens with one answer each; `logits_index` are the answer's own places, `returns` the labels."""
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
    return Samples(
        tokens=tokens,
        positions=np.broadcast_to(np.arange(width, dtype=np.int32), tokens.shape).copy(),
        lengths=np.array([len(one.reading.tokens) for one in batch], np.int32),
        policy=np.zeros((n,), np.int32),
        completion_lengths=np.array([[one.reading.completion_length] for one in batch], np.int32),
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
