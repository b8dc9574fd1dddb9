"""Readable records of task episodes: prompts, completions and rewards."""

from __future__ import annotations

import jax

from marl_jax.rollouts.host.conversation import Said, TokenChat
from marl_jax.rollouts.host.episodes import Episode, Job
from marl_jax.running.conversation_logs import GameRecord, Move
from marl_jax.setup.tasks import TaskSetup


class EpisodeLog:
    """Records of a few episodes of training examples; process 0 plays them."""

    def __init__(self, setup: TaskSetup):
        c = setup.config
        self._setup = setup
        self._runner = setup.runner(c.rollout.temperature, c.seed + 1)
        self._examples = setup.task.examples(c.task.split)

    def __call__(self, params: dict, key: jax.Array, step: int) -> list[GameRecord]:
        """Play and record the episodes of a step."""
        setup = self._setup
        setup.sampler.publish(params, version=step)
        if setup.process[0]:
            return []
        n, total = setup.config.log.games, len(self._examples)
        jobs = [Job(step, i, 0, self._examples[(step * n + i) % total]) for i in range(n)]
        return [record(setup, episode, "train") for episode in self._runner.play(jobs)]

    def close(self) -> None:
        """Stop the verifier processes."""
        self._runner.close()


def record(setup: TaskSetup, episode: Episode, source: str) -> GameRecord:
    """Convert an episode to a `GameRecord`."""
    moves = tuple(_move(chat, i, len(setup.roles)) for chat, i in turns(episode))
    scores = tuple(sum(move.reward[seat] for move in moves) for seat in range(len(setup.roles)))
    names = zip(setup.roles, setup.seat_labels(), strict=True)
    return GameRecord(
        game=setup.config.task.name,
        players=tuple(f"{role} ({label})" for role, label in names),
        moves=moves,
        outcome="incomplete" if episode.failed else "end",
        scores=scores,
        source=source,
        solved=None if episode.failed or episode.outcome is None else episode.outcome.success >= 1,
        error=f"{episode.failed}: {episode.error}" if episode.failed else "",
        roles=tuple(setup.roles),
    )


def turns(episode: Episode) -> list[tuple[TokenChat, int]]:
    """Return every turn, in order, as its conversation and its index there."""
    by_time = {
        (said.turn, chat.seat, number): (chat, i)
        for number, chat in enumerate(episode.chats)
        for i, said in enumerate(chat.said)
    }
    return [by_time[time] for time in sorted(by_time)]


def prompt(chat: TokenChat, i: int) -> str:
    """Return the part of the prompt that is new at a turn."""
    said = chat.said[i]
    return said.speaker.tokenizer.decode(chat.tokens[_end(chat.said[i - 1]) if i else 0 : said.start])


def _move(chat: TokenChat, i: int, n_seats: int) -> Move:
    said = chat.said[i]
    reply = said.replies[said.kept or 0]
    rewards = tuple(
        reply.rewards.team + (reply.rewards.agent + reply.rewards.process if seat == chat.seat else 0.0)
        for seat in range(n_seats)
    )
    return Move(
        player=chat.seat,
        prompt=prompt(chat, i),
        answer=reply.text,
        action="",
        reward=rewards,
        error="cut: the limit of tokens was reached" if reply.finish == "length" else "",
    )


def _end(said: Said) -> int:
    """Return the end of a completion in its conversation."""
    return said.start + len(said.contents[said.kept or 0])
