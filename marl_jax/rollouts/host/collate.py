"""Episodes as `Samples`: one row per chat and policy, and one for each turn with several candidates.

A row holds the chat's ids up to the last answer of the policy. Of a turn with candidates it holds those up to the one
that was kept, then the ids of the others as branches, one behind the other:

    tokens     u u u a a u u b b b | c c | d d d      u: what the task said, a and b: answers that were kept,
    branch     - - - - - - - - - - | 1 1 | 2 2 2      c and d: other candidates for b's place
    positions  0 1 2 3 4 5 6 7 8 9 | 7 8 | 7 8 9

What stands before later turns is read again for them. That is little beside the candidates, and rows are shorter, of
more equal length, and not read at all where all candidates of a turn were paid the same.

Candidates of one turn are a group, their number is the member. Answers without competitors are compared with those of
the other episodes of their example: they are a group per example and label, and the number of the episode is the
member; the learner takes seats apart.

The stop token of an answer is among its `targets` and not among the `tokens`; the hidden state that predicts it is that
of the token before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from marl_jax.rollouts.host.conversation import Said, TokenChat
from marl_jax.rollouts.host.episodes import Episode
from marl_jax.rollouts.host.sizes import UNIT, Sizes, bucket, round_up
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True)
class _Answer:
    """A candidate in a row; `time` sorts the turns of an episode: by number, then by seat and chat, nobody's speed."""

    said: Said
    k: int
    branch: bool
    group: tuple
    member: int
    time: tuple

    @property
    def sampled(self):
        return self.said.answers[self.k]


@dataclasses.dataclass(frozen=True)
class _Row:
    """A chat with the answers of one policy, or the candidates of one turn."""

    episode: int
    chat: TokenChat
    policy: int
    answers: list[_Answer]

    @property
    def trunk(self) -> list[int]:
        return self.chat.tokens[: self._trunk_length]

    @property
    def length(self) -> int:
        return self._trunk_length + sum(len(a.said.contents[a.k]) for a in self.answers if a.branch)

    @property
    def _trunk_length(self) -> int:
        return max(a.said.start + (0 if a.branch else len(a.said.contents[a.k])) for a in self.answers)

    @property
    def answer_tokens(self) -> int:
        return sum(len(a.sampled.tokens) for a in self.answers)


def sizes_for(
    episodes: Sequence[Episode],
    *,
    samples: int = 1,
    candidates: int = 1,
    time_order: bool = False,
    row_multiple: int = 1,
    token_unit: int = UNIT,
) -> Sizes:
    """Sizes that hold the episodes, tokens without room to spare.

    samples       episodes of an example
    candidates    K of the run: with more than one there are branches, whether or not this batch has any
    time_order    as for `collate`; needs a row to spare
    row_multiple  N is a multiple of this
    token_unit    T and X are multiples of this
    """
    rows = _rows(episodes)
    answers = [a for row in rows for a in row.answers]
    return Sizes(
        rows=bucket(len(rows) + time_order, row_multiple),
        tokens=round_up(max((r.length for r in rows), default=1), token_unit),
        answers=bucket(max((len(r.answers) for r in rows), default=1)),
        answer_tokens=round_up(max((r.answer_tokens for r in rows), default=1), token_unit),
        groups=bucket(len({a.group for a in answers})),
        members=max([samples, candidates, *(a.member + 1 for a in answers)]),
        turns=bucket(max((len(_turns(e)) for e in episodes), default=1)),
        branches=candidates > 1 or any(a.branch for a in answers),
    )


def collate(
    episodes: Sequence[Episode],
    sizes: Sizes,
    *,
    n_seats: int,
    reward_levels: Mapping[str, float] | None = None,
    time_order: bool = False,
    process: tuple[int, int] = (0, 1),
) -> Samples:
    """The samples of all episodes that did not fail.

    reward_levels  weights of team, agent and process rewards
    time_order     fill `answer_at`, for advantages over time: `ends` marks the last answer of an episode. Otherwise it
                   marks the last answer of each member of a group, with which its return is complete
    process        (number, how many): rows, groups and episodes are numbered through all processes, whose sizes agree
    """
    rows = _rows(episodes)
    if len(rows) + time_order > sizes.rows:
        raise ValueError(f"{len(rows)} rows do not fit into sizes.rows = {sizes.rows}")
    number, count = process
    N, T, S, X = sizes.rows, sizes.tokens, sizes.answers, sizes.answer_tokens
    per_token = {name: np.zeros((N, T), np.int32) for name in ("tokens", "positions")}
    branch = np.full((N, T), -1, np.int32)
    per_answer = {
        name: np.zeros((N, S), np.int32)
        for name in ("answer_lengths", "sees", "seat", "episode", "turn", "group", "member", "version")
    }
    per_answer |= {"ends": np.zeros((N, S), bool), "loss_weights": np.zeros((N, S), np.float32)}
    rewards = np.zeros((N, S, n_seats), np.float32)
    per_answer_token = {name: np.zeros((N, X), np.int32) for name in ("reads", "targets")}
    per_answer_token |= {name: np.zeros((N, X), np.float32) for name in ("logps", "values", "advantages", "returns")}
    answer_of = np.full((N, X), -1, np.int32)
    lengths, opening, policy = np.zeros((N,), np.int32), np.zeros((N,), np.int32), np.full((N,), -1, np.int32)
    levels = {"team": 1.0, "agent": 1.0, "process": 1.0, **(reward_levels or {})}
    groups = {key: i for i, key in enumerate(dict.fromkeys(a.group for row in rows for a in row.answers))}
    last = _last_times(rows, time_order)
    for n, row in enumerate(rows):
        trunk, seat = row.trunk, row.chat.seat
        end, x = len(trunk), 0
        per_token["tokens"][n, :end], per_token["positions"][n, :end] = trunk, np.arange(end)
        policy[n], opening[n] = row.policy, row.chat.opening
        for s, answer in enumerate(row.answers):
            said, sampled, content = answer.said, answer.sampled, answer.said.contents[answer.k]
            start, length = said.start, len(sampled.tokens)
            reads = np.arange(start - 1, start - 1 + length)
            if answer.branch:
                reads[1:] = np.arange(end, end + length - 1)
                here = slice(end, end + len(content))
                per_token["tokens"][n, here], branch[n, here] = content, s
                per_token["positions"][n, here] = np.arange(start, start + len(content))
                end += len(content)
            paid = said.replies[answer.k].rewards
            rewards[n, s] = levels["team"] * paid.team
            rewards[n, s, seat] += levels["agent"] * paid.agent + levels["process"] * paid.process
            values = {
                "answer_lengths": length, "sees": start, "seat": seat, "turn": said.turn,
                "episode": number * len(episodes) + row.episode,
                "group": number * sizes.groups + groups[answer.group], "member": answer.member,
                "version": sampled.versions[0], "loss_weights": row.policy >= 0,
                "ends": answer.time == last[_owner(row, answer, time_order)],
            }  # fmt: skip
            for name, value in values.items():
                per_answer[name][n, s] = value
            here = slice(x, x + length)
            answer_of[n, here], per_answer_token["reads"][n, here] = s, reads
            per_answer_token["targets"][n, here], per_answer_token["logps"][n, here] = sampled.tokens, sampled.logps
            x += length
        lengths[n] = end
    answer_at = _time_order(episodes, rows, sizes) + number * N * S if time_order else None
    return Samples(
        **per_token, lengths=lengths, policy=policy, opening=opening, **per_answer, rewards=rewards,
        answer_of=answer_of, **per_answer_token, branch=branch if sizes.branches else None, answer_at=answer_at,
        n_groups=count * sizes.groups, group_size=sizes.members,
    )  # fmt: skip


def _rows(episodes: Sequence[Episode]) -> list[_Row]:
    """Rows in the order of episodes, chats, policies and turns; chats in which nobody answered have none."""
    rows = []
    for e, episode in enumerate(episodes):
        job = episode.job
        for c, chat in enumerate([] if episode.failed else episode.chats):
            answers: dict[tuple[int, int], list[_Answer]] = {}
            for place, said in enumerate(chat.said):
                several = len(said.answers) > 1
                group = (job.position, job.sample, c, said.turn) if several else (job.position, said.label or "")
                answers.setdefault((said.speaker.number, place if several else -1), []).extend(
                    _Answer(said, k, k != said.kept, group, k if several else job.sample, _time(said, chat, c))
                    for k in range(len(said.answers))
                )
            rows += [_Row(e, chat, policy, found) for (policy, _), found in sorted(answers.items())]
    return rows


def _time(said: Said, chat: TokenChat, c: int) -> tuple:
    return said.turn, chat.seat, c


def _turns(episode: Episode) -> list[tuple]:
    """The times of the turns of an episode, in order."""
    chats = [] if episode.failed else episode.chats
    return sorted(_time(said, chat, c) for c, chat in enumerate(chats) for said in chat.said)


def _owner(row: _Row, answer: _Answer, time_order: bool) -> tuple:
    """What ends with an answer: an episode, or a member of a group."""
    return (row.episode,) if time_order else (answer.group, answer.member)


def _last_times(rows: Sequence[_Row], time_order: bool) -> dict[tuple, tuple]:
    last = {}
    for row in rows:
        for answer in row.answers:
            owner = _owner(row, answer, time_order)
            last[owner] = max(last.get(owner, answer.time), answer.time)
    return last


def _time_order(episodes: Sequence[Episode], rows: Sequence[_Row], sizes: Sizes) -> np.ndarray:
    """int32 [R, B]: the answer (row · S + number) of turn r of episode b, of candidates the kept one's.

    Behind the end of an episode stand answers of the last row, which is empty: they pay nothing and nobody learns from
    them.
    """
    places = {}
    for n, row in enumerate(rows):
        for s, answer in enumerate(row.answers):
            if not answer.branch or (answer.said.kept is None and answer.k == 0):
                places[row.episode, answer.time] = n * sizes.answers + s
    order = np.full((sizes.turns, len(episodes)), (sizes.rows - 1) * sizes.answers, np.int32)
    for e, episode in enumerate(episodes):
        for r, time in enumerate(_turns(episode)):
            order[r, e] = places[e, time]
    return order
