"""Collation of episodes into `Samples`.

There is one row per chat and policy, and one for each turn with several candidates. A row holds the token ids of the
chat up to the last completion of the policy. For a turn with candidates, it holds those up to the kept candidate,
followed by the other candidates as branches:

    tokens     u u u a a u u b b b | c c | d d d      u: text of the task; a and b: completions that were kept;
    branch     - - - - - - - - - - | 1 1 | 2 2 2      c and d: other candidates for the turn of b
    positions  0 1 2 3 4 5 6 7 8 9 | 7 8 | 7 8 9

The context of later turns is repeated in their rows. This costs little compared with the candidates. In return, rows
are shorter and of more similar lengths, and they are skipped if all candidates of a turn have the same reward.

The candidates of one turn form a group, in which the candidate number is the member. Completions without other
candidates are compared with those of the other episodes of their example. They form one group per example and label, in
which the episode number is the member. The learner separates seats.

The stop token of a completion is in `targets` but not in `tokens`. It is predicted by the hidden state of the token
before it.

Completions of remote models have rewards and turns like others, but their tokens are replaced: each is an empty one
after a context of one token, with loss weight 0.
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
    """A candidate in a row.

    `time` orders the turns of an episode by number, then by seat and chat, independent of speed.
    """

    said: Said
    k: int
    branch: bool
    group: tuple
    member: int
    time: tuple

    @property
    def sampled(self):
        return self.said.answers[self.k]

    @property
    def remote(self) -> bool:
        return self.said.speaker.remote

    @property
    def start(self) -> int:
        """Number of tokens of the row before the completion."""
        return 1 if self.remote else self.said.start

    @property
    def length(self) -> int:
        """Number of tokens of the completion in the row."""
        return 1 if self.remote else len(self.sampled.tokens)

    @property
    def truncated(self) -> bool:
        return not self.remote and self.sampled.finish == "length"


@dataclasses.dataclass(frozen=True)
class Row:
    """A chat with the completions of one policy, or with the candidates of one turn.

    Attributes:
        chat: Chat that the row is taken from.
        policy: Policy that sampled the completions.
        answers: Completions of the row.
        prompt_len: Number of tokens before the first completion of the chat.
        tokens: int32 [t]. See `Samples`.
        positions: int32 [t]. See `Samples`.
        branch: int32 [t]. See `Samples`.
        completion_of: int32 [x]. See `Samples`.
        logits_index: int32 [x]. See `Samples`.
        targets: int32 [x]. See `Samples`.
        logps: float32 [x]. See `Samples`.
    """

    chat: TokenChat
    policy: int
    answers: list[_Answer]
    prompt_len: int
    tokens: np.ndarray
    positions: np.ndarray
    branch: np.ndarray
    completion_of: np.ndarray
    logits_index: np.ndarray
    targets: np.ndarray
    logps: np.ndarray


def pack(episode: Episode) -> None:
    """Build the rows of a finished episode.

    This is most of the work of `collate`, and is done while other episodes are still running.
    """
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
        for (policy, _), own in sorted(answers.items()):
            episode.rows.append(_remote_row(chat, policy, own) if own[0].remote else _row(chat, policy, own))


def _remote_row(chat: TokenChat, policy: int, answers: list[_Answer]) -> Row:
    """Return a row of empty completions in place of those of a remote model."""
    one, each = np.zeros((1,), np.int32), np.zeros((len(answers),), np.int32)
    numbers = np.arange(len(answers), dtype=np.int32)
    return Row(
        chat, policy, answers, 1, tokens=one, positions=one, branch=one - 1, completion_of=numbers, logits_index=each,
        targets=each, logps=each.astype(np.float32),
    )  # fmt: skip


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
        chat.prompt_len,
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
    """Return sizes that hold the episodes, without spare tokens.

    Args:
        episodes: Episodes to collate.
        samples: Number of episodes per example.
        candidates: Number of candidates per turn, K. If it is more than one, there are branches even if this batch has
            none.
        time_order: See `collate`; requires one spare row.
        row_multiple: Divisor of N.
        token_unit: Divisor of T and X.
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
    """Collate all episodes that did not fail.

    Args:
        episodes: Episodes of this process.
        sizes: Static sizes of the batch.
        n_seats: Number of seats, P.
        reward_levels: Weights of team, agent and process rewards.
        time_order: Whether to fill `completion_at`, for advantages over time. Then `ends` marks the last completion of
            an episode. Otherwise it marks the last completion of each member of a group, which completes its return.
        process: Index of this process and number of processes. Rows, groups and episodes are numbered across all
            processes, which use the same sizes.
    """
    rows = _rows(episodes)
    if len(rows) + time_order > sizes.rows:
        raise ValueError(f"sizes.rows is {sizes.rows}, but the episodes have {len(rows)} rows")
    number, count = process
    N, T, S, X = sizes.rows, sizes.tokens, sizes.answers, sizes.answer_tokens
    groups = {key: i for i, key in enumerate(dict.fromkeys(a.group for _, row in rows for a in row.answers))}
    last = _last_times(rows, time_order)
    all_of = [(n, s, e, row, answer) for n, (e, row) in enumerate(rows) for s, answer in enumerate(row.answers)]
    at = np.asarray([n for n, *_ in all_of], np.intp), np.asarray([s for _, s, *_ in all_of], np.intp)
    per_answer = {
        "completion_lengths": (np.int32, [a.length for *_, a in all_of]),
        "truncated": (bool, [a.truncated for *_, a in all_of]),
        "context_len": (np.int32, [a.start for *_, a in all_of]),
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
             "prompt_len": (0, [row.prompt_len for _, row in rows])}  # fmt: skip
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
    """Return zeros with values at the given indices."""
    full = np.zeros(shape, dtype)
    full[at] = values
    return full


def _padded(
    shape: tuple[int, int], rows: Sequence[tuple[int, Row]], name: str, padding: int = 0, dtype: type = np.int32
) -> np.ndarray:
    """Stack the arrays of this name of all rows, with padding."""
    full = np.full(shape, padding, dtype)
    for line, (_, row) in zip(full, rows, strict=False):
        part = getattr(row, name)
        line[: len(part)] = part
    return full


def _rows(episodes: Sequence[Episode]) -> list[tuple[int, Row]]:
    """Return rows with the number of their episode.

    Rows are in the order of episodes, chats, policies and turns. Chats without completions have no rows.
    """
    for episode in episodes:
        if episode.rows is None:
            pack(episode)
    return [(e, row) for e, episode in enumerate(episodes) for row in episode.rows or ()]


def _time(said: Said, chat: TokenChat, c: int) -> tuple:
    return said.turn, chat.seat, c


def _turns(episode: Episode) -> list[tuple]:
    """Return the times of the turns of an episode, in order."""
    chats = [] if episode.failed else episode.chats
    return sorted(_time(said, chat, c) for c, chat in enumerate(chats) for said in chat.said)


def _owner(episode: int, answer: _Answer, time_order: bool) -> tuple:
    """Return the key of the episode or group member that a completion belongs to."""
    return (episode,) if time_order else (answer.group, answer.member)


def _last_times(rows: Sequence[tuple[int, Row]], time_order: bool) -> dict[tuple, tuple]:
    last = {}
    for e, row in rows:
        for answer in row.answers:
            owner = _owner(e, answer, time_order)
            last[owner] = max(last.get(owner, answer.time), answer.time)
    return last


def _time_order(episodes: Sequence[Episode], rows: Sequence[tuple[int, Row]], sizes: Sizes) -> np.ndarray:
    """Return the index of the completion of turn r of episode b, int32 [R, B].

    The index is row · S + completion. A turn with candidates has the index of the kept one. After the end of an
    episode, entries refer to completions of the last row, which is empty and has neither rewards nor loss weights.
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
    """Shard the samples of all processes over the mesh by row.

    Every process has the same number of rows and the same sizes. `completion_at` numbers rows as if those of a process
    were contiguous. If the devices of a process are elsewhere on the mesh, it is renumbered.
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
    """Return the rows of all processes by their number on the mesh.

    Entry p · n + r is the number of row r of process p.
    """
    rows: list[set[int]] = [set() for _ in range(count)]
    for device, (taken, *_) in sharding.devices_indices_map((count * n,)).items():
        rows[device.process_index].update(range(count * n)[taken])
    return np.concatenate([sorted(numbers) for numbers in rows])


def _global_order(order: np.ndarray, samples: Samples, numbers: np.ndarray) -> np.ndarray:
    """Return `completion_at` of the episodes of all processes with row numbers on the mesh."""
    if jax.process_count() > 1:
        order = np.concatenate(multihost_utils.process_allgather(order), axis=1)
    row, answer = np.divmod(order, samples.n_completions)
    return (numbers[row] * samples.n_completions + answer).astype(np.int32)
