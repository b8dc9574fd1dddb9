"""The server for rollouts whose episodes are external programs.

    runner = EpisodeRunner(task, speakers, seating, server=episode_server)

Each role is a model and each episode a session. The server listens on a free port of the loopback address while
episodes are played. Every request needs the key of a session, so every completion belongs to an episode.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping

from envs.tasks.replies import TaskError
from marl_jax.rollouts.host.conversation import SamplerError, Speaker
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.server import in_loop
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.conversations import SessionConversation
from marl_jax.serving.sessions.sessions import Session

LIMITS = Limits(
    concurrent=1 << 16, seconds=math.inf, completions=sys.maxsize, messages=sys.maxsize, request_tokens=sys.maxsize
)
"""No limits: the programs are trusted, the batcher queues requests, and the time limit of the episode ends them."""


class EpisodeSession:
    """A session in the interface of tasks (`envs.tasks.task.Session`)."""

    def __init__(self, session: Session, url: str):
        self._session, self.url, self.key = session, f"{url}/v1", session.key

    @property
    def answers(self) -> int:
        """Number of completions so far."""
        return sum(len(call.replies) for call in self._session.calls.values())

    @property
    def paid(self) -> float | None:
        """Sum of the team rewards so far; None if no reward was given."""
        replies = (reply for call in self._session.calls.values() for reply in call.replies)
        return sum(reply.rewards.team for reply in replies) if self._session.rewarded else None

    async def reward(self, amount: float, role: str | None = None) -> None:
        """Reward the team for the last completion, or a role for its own last one."""
        call = None
        if role is not None:
            answered = [c.id for c in self._session.calls.values() if c.model.name == role and c.replies]
            if not answered:
                raise TaskError(f"role is {role!r}, but this role has no completion to reward yet")
            call = answered[-1]
        try:
            await self._session.reward(amount, call=call, level="team" if role is None else "agent")
        except ApiError as error:
            raise TaskError(error.message) from None

    def conversations(self) -> list[SessionConversation]:
        """Return the conversations of the episode."""
        return self._session.conversations()


@contextlib.asynccontextmanager
async def episode_server(speakers: Mapping[str, Speaker]) -> AsyncIterator[Callable]:
    """Serve the speakers by name and yield a function that opens sessions.

    The function maps a seed to an async context manager of an `EpisodeSession`. A sampler that has failed ends the run,
    because every later episode would fail too.
    """
    endpoint = Endpoint(
        {name: ServedModel.of(name, speaker) for name, speaker in speakers.items()}, keys=Keys(), limits=LIMITS
    )
    sessions = endpoint.sessions

    @contextlib.asynccontextmanager
    async def opened(seed: int) -> AsyncIterator[EpisodeSession]:
        session = await sessions.open(seed=seed, policy_sampling=True)
        try:
            yield EpisodeSession(session, url)
        finally:
            await sessions.end(session)
            sessions.discard(session)
            if failed := endpoint.failed_models():
                raise SamplerError(f"the sampler of {', '.join(failed)} failed")

    async with in_loop(endpoint.application()) as url:
        yield opened
