"""The server of a rollout whose episodes are other programs: each role is a model, each episode a session.

    runner = EpisodeRunner(task, speakers, seating, server=episode_server)

It listens on the loopback address, on a free port, and only while episodes are played. Every request needs the key of
a session, so that no answer is given that belongs to no episode.
"""

from __future__ import annotations

import contextlib
import math
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

LIMITS = Limits(concurrent=1 << 16, seconds=math.inf)
"""Programs are the user's own: the batcher queues what they ask, and the episode's time limit ends it."""


class EpisodeSession:
    """A session as a task has it (`envs.tasks.task.Session`)."""

    def __init__(self, session: Session, url: str):
        self._session, self.url, self.key = session, f"{url}/v1", session.key

    @property
    def answers(self) -> int:
        """How many answers were given so far."""
        return sum(len(call.replies) for call in self._session.calls.values())

    @property
    def paid(self) -> float | None:
        """Team rewards so far; None where no reward was given at all."""
        replies = (reply for call in self._session.calls.values() for reply in call.replies)
        return sum(reply.rewards.team for reply in replies) if self._session.rewarded else None

    async def reward(self, amount: float, role: str | None = None) -> None:
        """Pays the team for the last answer, or a role for its own last one."""
        call = None
        if role is not None:
            found = [c.id for c in self._session.calls.values() if c.model.name == role and c.replies]
            if not found:
                raise TaskError(f"reward(role={role!r}): this role has given no answer")
            call = found[-1]
        try:
            await self._session.reward(amount, call=call, level="team" if role is None else "agent")
        except ApiError as error:
            raise TaskError(error.message) from None

    def conversations(self) -> list[SessionConversation]:
        """The chats of the episode."""
        return self._session.conversations()


@contextlib.asynccontextmanager
async def episode_server(speakers: Mapping[str, Speaker]) -> AsyncIterator[Callable]:
    """Serves the speakers by their names; gives a function from a seed to a session, as a context.

    A sampler that has failed ends the run, because every later episode would fail as well.
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
