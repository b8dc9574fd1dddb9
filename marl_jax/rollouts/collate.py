"""Episodes as `Samples`: one row per chat and policy, candidates that were not kept as branches.

A row holds the chat's ids up to the last answer of the policy, then the ids of its branches, one behind the other:

    tokens     u u u a a u u b b b | c c | d d d      u: what the task said, a and b: answers that were kept,
    branch     - - - - - - - - - - | 2 2 | 3 3 3      c and d: other candidates for b's place
    positions  0 1 2 3 4 5 6 7 8 9 | 7 8 | 7 8 9

The stop token of an answer is among its `targets` and not among the `tokens`; the hidden state that predicts it is that
of the token before. Sizes are rounded up to a few values, so that the learner's programs are compiled a few times only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from marl_jax.rollouts.conversation import Said, TokenChat
from marl_jax.rollouts.episodes import Episode


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """As in the spec of `marl_jax.samples`; to be replaced by `from marl_jax.samples import Samples`."""

    tokens: np.ndarray
    positions: np.ndarray
    segment: np.ndarray | None
    branch: np.ndarray | None
    lengths: np.ndarray
    policy: np.ndarray
    answer_lengths: np.ndarray
    sees: np.ndarray
    seat: np.ndarray
    episode: np.ndarray
    turn: np.ndarray
    group: np.ndarray
    member: np.ndarray
    ends: np.ndarray
    loss_weights: np.ndarray
    version: np.ndarray
    rewards: np.ndarray
    answer_of: np.ndarray
    reads: np.ndarray
    targets: np.ndarray
    logps: np.ndarray
    values: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    action: np.ndarray | None = None
    legal: np.ndarray | None = None
    central: tuple[np.ndarray, np.ndarray] | None = None
    ref_logps: np.ndarray | None = None
    old_logps: np.ndarray | None = None
    answer_at: np.ndarray | None = None
    lookahead: int = dataclasses.field(default=0, metadata=dict(static=True))
    n_groups: int = dataclasses.field(default=0, metadata=dict(static=True))
    group_size: int = dataclasses.field(default=1, metadata=dict(static=True))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of a batch: N, T, S, X, groups, answers of an episode in time order, and whether it has branches."""

    rows: int = 1
    tokens: int = 1
    answers: int = 1
    answer_tokens: int = 1
    groups: int = 1
    turns: int = 1
    branches: bool = False

    def max(self, other: Sizes) -> Sizes:
        """The larger of each."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Sizes(*(max(a, b) for a, b in pairs))


@dataclasses.dataclass(frozen=True)
class _Answer:
    """A candidate in a row."""

    said: Said
    k: int
    branch: bool
    group: tuple
    last: bool
    number: tuple  # identifies the turn within the batch

    @property
    def sampled(self):
        return self.said.answers[self.k]


@dataclasses.dataclass(frozen=True)
class _Row:
    """A chat with the answers of one policy."""

    episode: int
    chat: TokenChat
    policy: int
    answers: list[_Answer]

    @property
    def trunk(self) -> list[int]:
        ends = [a.said.start + (0 if a.branch else len(a.said.contents[a.k])) for a in self.answers]
        return self.chat.tokens[: max(ends)]

    @property
    def length(self) -> int:
        return len(self.trunk) + sum(len(a.said.contents[a.k]) for a in self.answers if a.branch)

    @property
    def answer_tokens(self) -> int:
        return sum(len(a.sampled.tokens) for a in self.answers)


def bucket(n: int, unit: int = 1) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16 … units that holds n: at most half as much again."""
    power = 1
    while power * unit < n:
        power *= 2
    return unit * (power * 3 // 4 if power >= 4 and power * 3 // 4 * unit >= n else power)


def sizes_for(
    episodes: Sequence[Episode], *, candidates: int = 1, row_multiple: int = 1, token_unit: int = 64
) -> Sizes:
    """Sizes that hold the episodes.

    candidates    K of the run: with more than one there are branches, whether or not this batch has any
    row_multiple  N is a multiple of this
    token_unit    T and X are multiples of this
    """
    rows = _rows(episodes)
    answers = [a for row in rows for a in row.answers]
    return Sizes(
        rows=bucket(len(rows), row_multiple),
        tokens=bucket(max((r.length for r in rows), default=1), token_unit),
        answers=bucket(max((len(r.answers) for r in rows), default=1)),
        answer_tokens=bucket(max((r.answer_tokens for r in rows), default=1), token_unit),
        groups=bucket(len({a.group for a in answers})),
        turns=bucket(max((len(_turns(e)) for e in episodes), default=1)),
        branches=candidates > 1 or any(a.branch for a in answers),
    )


def collate(
    episodes: Sequence[Episode],
    sizes: Sizes,
    *,
    n_seats: int,
    group_size: int,
    reward_levels: Mapping[str, float] | None = None,
    first_group: int = 0,
    n_groups: int | None = None,
    numbers: Sequence[int] | None = None,
) -> Samples:
    """The samples of all episodes that did not fail.

    group_size            members of the largest group: episodes of an example, or candidates of a turn
    reward_levels         weights of team, agent and process rewards
    first_group, n_groups of this process among all; the groups of a batch are numbered from the first on
    numbers               the episodes' numbers; their places in the list if not given
    """
    rows = _rows(episodes)
    if len(rows) > sizes.rows:
        raise ValueError(f"{len(rows)} rows do not fit into sizes.rows = {sizes.rows}")
    N, T, S, X = sizes.rows, sizes.tokens, sizes.answers, sizes.answer_tokens
    per_token = {name: np.zeros((N, T), np.int32) for name in ("tokens", "positions")}
    branch = np.full((N, T), -1, np.int32)
    per_answer = {
        name: np.zeros((N, S), np.int32)
        for name in ("answer_lengths", "sees", "seat", "episode", "turn", "group", "member", "version")
    }
    per_answer |= {"ends": np.zeros((N, S), bool), "loss_weights": np.zeros((N, S), np.float32)}
    rewards = np.zeros((N, S, n_seats), np.float32)
    answer_of = np.full((N, X), -1, np.int32)
    reads, targets = np.zeros((N, X), np.int32), np.zeros((N, X), np.int32)
    logps = np.zeros((N, X), np.float32)
    lengths, policy = np.zeros((N,), np.int32), np.full((N,), -1, np.int32)
    levels = {"team": 1.0, "agent": 1.0, "process": 1.0, **(reward_levels or {})}
    groups = _number_groups(a for row in rows for a in row.answers)
    numbers = range(len(episodes)) if numbers is None else numbers
    for n, row in enumerate(rows):
        trunk = row.trunk
        end = len(trunk)
        per_token["tokens"][n, :end], per_token["positions"][n, :end] = trunk, np.arange(end)
        policy[n] = row.policy
        x = 0
        for s, answer in enumerate(row.answers):
            said, sampled, content = answer.said, answer.sampled, answer.said.contents[answer.k]
            start, length = said.start, len(sampled.tokens)
            place = np.arange(start - 1, start - 1 + length)  # what predicts each token
            if answer.branch:
                place[1:] = np.arange(end, end + length - 1)
                per_token["tokens"][n, end : end + len(content)] = content
                per_token["positions"][n, end : end + len(content)] = np.arange(start, start + len(content))
                branch[n, end : end + len(content)] = s
                end += len(content)
            reply = said.replies[answer.k].rewards
            seat = row.chat.seat
            rewards[n, s] = levels["team"] * reply.team
            rewards[n, s, seat] += levels["agent"] * reply.agent + levels["process"] * reply.process
            values = {
                "answer_lengths": length, "sees": start, "seat": seat, "episode": numbers[row.episode],
                "turn": said.turn, "group": first_group + groups[answer.group],
                "member": answer.k if len(said.answers) > 1 else episodes[row.episode].job.sample,
                "version": sampled.versions[0], "ends": answer.last, "loss_weights": row.policy >= 0,
            }  # fmt: skip
            for name, value in values.items():
                per_answer[name][n, s] = value
            answer_of[n, x : x + length], reads[n, x : x + length] = s, place
            targets[n, x : x + length], logps[n, x : x + length] = sampled.tokens, sampled.logps
            x += length
        lengths[n] = end
    return Samples(
        **per_token, segment=None, branch=branch if sizes.branches else None, lengths=lengths, policy=policy,
        **per_answer, rewards=rewards, answer_of=answer_of, reads=reads, targets=targets, logps=logps,
        values=np.zeros_like(logps), advantages=np.zeros_like(logps), returns=np.zeros_like(logps),
        answer_at=_time_order(episodes, rows, sizes), n_groups=n_groups or sizes.groups, group_size=group_size,
    )  # fmt: skip


def _rows(episodes: Sequence[Episode]) -> list[_Row]:
    """Rows in the order of episodes, seats, chats and policies; chats in which nobody answered have none."""
    rows = []
    for e, episode in enumerate(episodes):
        if episode.failed:
            continue
        last = max(_turns(episode), default=None)
        for c, chat in enumerate(episode.chats):
            answers: dict[int, list[_Answer]] = {}
            for said in chat.said:
                number = (said.turn, chat.seat, chat.path, c)
                if len(said.answers) > 1:
                    group = (1, episode.job.position, episode.job.sample, chat.seat, chat.path, said.turn)
                else:
                    group = (0, episode.job.position, chat.seat, said.label or "")
                answers.setdefault(said.speaker.number, []).extend(
                    _Answer(said, k, k != said.kept, group, number == last, (e, number))
                    for k in range(len(said.answers))
                )
            rows += [_Row(e, chat, policy, found) for policy, found in sorted(answers.items())]
    return rows


def _turns(episode: Episode) -> list[tuple]:
    """The turns of an episode in time: by their number, then by seat, so that nobody's speed matters."""
    if episode.failed:
        return []
    return sorted((s.turn, chat.seat, chat.path, c) for c, chat in enumerate(episode.chats) for s in chat.said)


def _number_groups(answers: Iterable[_Answer]) -> dict[tuple, int]:
    """Numbers from 0 in the order in which groups appear.

    Candidates of one turn are a group. Where a turn has one answer, the episodes of an example are: those answers of a
    seat that carry the same label.
    """
    return {key: number for number, key in enumerate(dict.fromkeys(a.group for a in answers))}


def _time_order(episodes: Sequence[Episode], rows: Sequence[_Row], sizes: Sizes) -> np.ndarray:
    """int32 [R, B]: the answer (row · S + number) of turn r of episode b, the kept candidate's; -1 where none is."""
    places = {}
    for n, row in enumerate(rows):
        for s, answer in enumerate(row.answers):
            if not answer.branch or answer.number not in places:
                places[answer.number] = n * sizes.answers + s
    order = np.full((sizes.turns, len(episodes)), -1, np.int32)
    for e, episode in enumerate(episodes):
        for r, turn in enumerate(_turns(episode)):
            order[r, e] = places[e, turn]
    return order
