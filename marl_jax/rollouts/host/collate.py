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
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marl_jax.devices import placement
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
class Row:
    """A chat with the answers of one policy, or the candidates of one turn.

    tokens, positions, branch           int32 [t], as in `Samples`
    answer_of, reads, targets, logps    [x], of all answers, one behind the other
    """

    chat: TokenChat
    policy: int
    answers: list[_Answer]
    tokens: np.ndarray
    positions: np.ndarray
    branch: np.ndarray
    completion_of: np.ndarray
    logits_index: np.ndarray
    targets: np.ndarray
    logps: np.ndarray


def pack(episode: Episode) -> None:
    """Makes the rows of an episode that has ended: most of the work of `collate`, which others need not wait for."""
    episode.rows = []
    for c, chat in enumerate([] if episode.failed else episode.chats):
        answers: dict[tuple[int, int], list[_Answer]] = {}
        for place, said in enumerate(chat.said):
            job, several = episode.job, len(said.answers) > 1
            group = (job.position, job.sample, c, said.turn) if several else (job.position, said.label or "")
            answers.setdefault((said.speaker.number, place if several else -1), []).extend(
                _Answer(said, k, k != said.kept, group, k if several else job.sample, _time(said, chat, c))
                for k in range(len(said.answers))
            )
        episode.rows += [_row(chat, policy, found) for (policy, _), found in sorted(answers.items())]


def _row(chat: TokenChat, policy: int, answers: list[_Answer]) -> Row:
    end = max(a.said.start + (0 if a.branch else len(a.said.contents[a.k])) for a in answers)
    tokens, positions, branch = [chat.tokens[:end]], [np.arange(end)], [np.full((end,), -1)]
    logits_index = []
    for s, answer in enumerate(answers):
        start, length = answer.said.start, len(answer.sampled.tokens)
        logits_index.append(np.arange(start - 1, start - 1 + length))
        if answer.branch:
            content = answer.said.contents[answer.k]
            logits_index[-1][1:] = np.arange(end, end + length - 1)
            tokens.append(content)
            positions.append(np.arange(start, start + len(content)))
            branch.append(np.full((len(content),), s))
            end += len(content)
    return Row(
        chat,
        policy,
        answers,
        tokens=_joined(tokens, np.int32),
        positions=_joined(positions, np.int32),
        branch=_joined(branch, np.int32),
        completion_of=np.repeat(np.arange(len(answers), dtype=np.int32), [len(a.sampled.tokens) for a in answers]),
        logits_index=_joined(logits_index, np.int32),
        targets=_joined([a.sampled.tokens for a in answers], np.int32),
        logps=_joined([a.sampled.logps for a in answers], np.float32),
    )


def _joined(parts: Sequence[Sequence | np.ndarray], dtype: type) -> np.ndarray:
    return np.asarray(parts[0], dtype) if len(parts) == 1 else np.concatenate(parts).astype(dtype)


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
    rows = [row for _, row in _rows(episodes)]
    answers = [a for row in rows for a in row.answers]
    return Sizes(
        rows=bucket(len(rows) + time_order, row_multiple),
        tokens=round_up(max((len(r.tokens) for r in rows), default=1), token_unit),
        answers=bucket(max((len(r.answers) for r in rows), default=1)),
        answer_tokens=round_up(max((len(r.targets) for r in rows), default=1), token_unit),
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
    time_order     fill `completion_at`, for advantages over time: `ends` marks the last answer of an episode. Otherwise
                   it marks the last answer of each member of a group, with which its return is complete
    process        (number, how many): rows, groups and episodes are numbered through all processes, whose sizes agree
    """
    rows = _rows(episodes)
    if len(rows) + time_order > sizes.rows:
        raise ValueError(f"{len(rows)} rows do not fit into sizes.rows = {sizes.rows}")
    number, count = process
    N, T, S, X = sizes.rows, sizes.tokens, sizes.answers, sizes.answer_tokens
    groups = {key: i for i, key in enumerate(dict.fromkeys(a.group for _, row in rows for a in row.answers))}
    last = _last_times(rows, time_order)
    all_of = [(n, s, e, row, answer) for n, (e, row) in enumerate(rows) for s, answer in enumerate(row.answers)]
    at = np.asarray([n for n, *_ in all_of], np.intp), np.asarray([s for _, s, *_ in all_of], np.intp)
    per_answer = {
        "completion_lengths": (np.int32, [len(a.sampled.tokens) for *_, a in all_of]),
        "context_len": (np.int32, [a.said.start for *_, a in all_of]),
        "seat": (np.int32, [row.chat.seat for *_, row, _ in all_of]),
        "turn": (np.int32, [a.said.turn for *_, a in all_of]),
        "episode": (np.int32, [number * len(episodes) + e for _, _, e, *_ in all_of]),
        "group": (np.int32, [number * sizes.groups + groups[a.group] for *_, a in all_of]),
        "member": (np.int32, [a.member for *_, a in all_of]),
        "version": (np.int32, [a.sampled.versions[0] for *_, a in all_of]),
        "loss_weights": (np.float32, [row.policy >= 0 for *_, row, _ in all_of]),
        "ends": (bool, [a.time == last[_owner(e, a, time_order)] for _, _, e, _, a in all_of]),
    }
    per_answer = {name: _scattered((N, S), at, *column) for name, column in per_answer.items()}
    levels = {"team": 1.0, "agent": 1.0, "process": 1.0, **(reward_levels or {})}
    paid = [a.said.replies[a.k].rewards for *_, a in all_of]
    team = _scattered((N, S), at, np.float32, [levels["team"] * p.team for p in paid])
    own = [levels["agent"] * p.agent + levels["process"] * p.process for p in paid]
    rewards = np.repeat(team[..., None], n_seats, axis=-1)
    rewards[*at, per_answer["seat"][at]] += np.asarray(own, np.float32)
    whole = {"lengths": (0, [len(row.tokens) for _, row in rows]), "policy": (-1, [row.policy for _, row in rows]),
             "prompt_len": (0, [row.chat.prompt_len for _, row in rows])}  # fmt: skip
    per_row = {name: np.full((N,), padding, np.int32) for name, (padding, _) in whole.items()}
    for name, (_, values) in whole.items():
        per_row[name][: len(rows)] = values
    completion_at = _time_order(episodes, rows, sizes) + number * N * S if time_order else None
    fields: dict[str, Any] = dict(
        **per_row, **per_answer, rewards=rewards,
        **{name: _padded((N, T), rows, name) for name in ("tokens", "positions")},
        branch=_padded((N, T), rows, "branch", -1) if sizes.branches else None,
        **{name: _padded((N, X), rows, name) for name in ("logits_index", "targets")},
        logps=_padded((N, X), rows, "logps", dtype=np.float32),
        completion_of=_padded((N, X), rows, "completion_of", -1),
        **{name: np.zeros((N, X), np.float32) for name in ("values", "advantages", "returns")},
        completion_at=completion_at, n_groups=count * sizes.groups, group_size=sizes.members,
    )  # fmt: skip
    return Samples(**fields)


def _scattered(shape: tuple[int, int], at: tuple[np.ndarray, np.ndarray], dtype, values: Sequence) -> np.ndarray:
    """Zeros but for these values at these places."""
    full = np.zeros(shape, dtype)
    full[at] = values
    return full


def _padded(
    shape: tuple[int, int], rows: Sequence[tuple[int, Row]], name: str, padding: int = 0, dtype: type = np.int32
) -> np.ndarray:
    """The rows' arrays of this name, one under the other."""
    full = np.full(shape, padding, dtype)
    for line, (_, row) in zip(full, rows, strict=False):
        part = getattr(row, name)
        line[: len(part)] = part
    return full


def _rows(episodes: Sequence[Episode]) -> list[tuple[int, Row]]:
    """Rows with the number of their episode, in the order of episodes, chats, policies and turns; chats in which
    nobody answered have none."""
    for episode in episodes:
        if episode.rows is None:
            pack(episode)
    return [(e, row) for e, episode in enumerate(episodes) for row in episode.rows or ()]


def _time(said: Said, chat: TokenChat, c: int) -> tuple:
    return said.turn, chat.seat, c


def _turns(episode: Episode) -> list[tuple]:
    """The times of the turns of an episode, in order."""
    chats = [] if episode.failed else episode.chats
    return sorted(_time(said, chat, c) for c, chat in enumerate(chats) for said in chat.said)


def _owner(episode: int, answer: _Answer, time_order: bool) -> tuple:
    """What ends with an answer: an episode, or a member of a group."""
    return (episode,) if time_order else (answer.group, answer.member)


def _last_times(rows: Sequence[tuple[int, Row]], time_order: bool) -> dict[tuple, tuple]:
    last = {}
    for e, row in rows:
        for answer in row.answers:
            owner = _owner(e, answer, time_order)
            last[owner] = max(last.get(owner, answer.time), answer.time)
    return last


def _time_order(episodes: Sequence[Episode], rows: Sequence[tuple[int, Row]], sizes: Sizes) -> np.ndarray:
    """int32 [R, B]: the answer (row · S + number) of turn r of episode b, of candidates the kept one's.

    Behind the end of an episode stand answers of the last row, which is empty: they pay nothing and nobody learns from
    them.
    """
    places = {}
    for n, (e, row) in enumerate(rows):
        for s, answer in enumerate(row.answers):
            if not answer.branch or (answer.said.kept is None and answer.k == 0):
                places[e, answer.time] = n * sizes.answers + s
    order = np.full((sizes.turns, len(episodes)), (sizes.rows - 1) * sizes.answers, np.int32)
    for e, episode in enumerate(episodes):
        for r, time in enumerate(_turns(episode)):
            order[r, e] = places[e, time]
    return order


def place(mesh: Mesh, samples: Samples) -> Samples:
    """The samples of all processes, split over the mesh by their rows.

    Processes have equally many rows of equal sizes, and `completion_at` counts rows as if those of a process stood one
    behind the other; where its devices lie elsewhere on the mesh, it is changed accordingly.
    """
    by_rows = NamedSharding(mesh, PartitionSpec(placement.ROWS))
    count, n = jax.process_count(), samples.n
    order = samples.completion_at
    if order is not None:
        order = _global_order(np.asarray(order), samples, _rows_of_processes(by_rows, count, n))
        order = jax.device_put(order, placement.replicated(mesh))
    put = lambda x: jax.make_array_from_process_local_data(by_rows, x, (count * n, *x.shape[1:]))  # noqa: E731
    return jax.tree.map(put, samples.replace(completion_at=None)).replace(completion_at=order)


def _rows_of_processes(sharding: NamedSharding, count: int, n: int) -> np.ndarray:
    """int [count · n]: for row r of process p, at p · n + r, its number on the mesh."""
    rows: list[set[int]] = [set() for _ in range(count)]
    for device, (taken, *_) in sharding.devices_indices_map((count * n,)).items():
        rows[device.process_index].update(range(count * n)[taken])
    return np.concatenate([sorted(found) for found in rows])


def _global_order(order: np.ndarray, samples: Samples, numbers: np.ndarray) -> np.ndarray:
    """int32 [R, B]: the turns of the games of all processes, with the numbers of rows on the mesh."""
    if jax.process_count() > 1:
        order = np.concatenate(multihost_utils.process_allgather(order), axis=1)
    row, answer = np.divmod(order, samples.n_completions)
    return (numbers[row] * samples.n_completions + answer).astype(np.int32)
