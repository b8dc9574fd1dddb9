r"""Terminal play of one role of a task, or watching the policies of a run.

    python launch.py --mode=play --workdir=runs/mine --config.play.seat=0      # answer for the first role
    python launch.py --mode=play --workdir=runs/mine --config.play.seat=-1     # watch

Prompts are printed as the model reads them. An answer is one line, in which \n starts a new line. `quit` ends the
episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from typing import TextIO

import jax
import numpy as np

from envs.tasks.replies import EpisodeError
from marl_jax.errors import RunError
from marl_jax.rollouts.host import metrics as episode_metrics
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import Episode, Job
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.remote import is_remote
from marl_jax.serving.remote_speaker import remote_speaker
from marl_jax.setup.tasks import TaskSetup

PART = "test"
PATIENCE = 1e9  # time limit for a user, in seconds


class UserQuit(EpisodeError):
    """The user has quit."""

    reason = "left"


@dataclasses.dataclass(eq=False)
class Terminal:
    """A seat at the terminal, where a user or a model answers.

    Attributes:
        name: Name of the role.
        speaker: Policy of the role.
        source: Input of the user.
        output: Output for prompts and completions.
        lock: Lock that is shared by all seats.
        person: Whether a user answers.
        shown: Whether the prompts and completions of a model are printed.
        read: Token ids that have been printed already.
    """

    name: str
    speaker: Speaker
    source: TextIO
    output: TextIO
    lock: asyncio.Lock
    person: bool = False
    shown: bool = True
    read: list[int] = dataclasses.field(default_factory=list)

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Completion]:
        """Print the new part of the prompt and return the completions."""
        async with self.lock:  # concurrent turns are printed one after the other
            new = ids[len(self.read) :] if list(ids[: len(self.read)]) == self.read else ids
            self.read = list(ids)
            decode = self.speaker.tokenizer.decode
            if self.shown or self.person:
                self._write(f"\n--- {self.name} reads\n{decode(list(new))}\n")
            if self.person:
                return [await self._typed(self.speaker.max_length - len(ids)) for _ in range(n)]
            answers = await self.speaker.sampler.answer(ids, sampling, policy, n, deadline)
            if self.shown:
                for answer in answers:
                    self._write(f"--- {self.name} answers\n{decode(self.speaker.content(answer.tokens.tolist()))}\n")
            return answers

    def set_weights(self, policy: int, weights: dict, version: int) -> None:
        """Do nothing; the weights are those of the run."""

    async def _typed(self, room: int) -> Completion:
        self._write(f"--- your answer for {self.name}> ")
        line = await asyncio.to_thread(self.source.readline)
        if not line or line.strip() == "quit":
            raise UserQuit("the user quit")
        tokenizer = self.speaker.tokenizer
        text = tokenizer.strip_special(line.rstrip("\n").replace("\\n", "\n"))
        ids = [*tokenizer.encode(text), tokenizer.stop_ids[0]][:room]
        zeros = np.zeros(len(ids))
        return Completion(np.asarray(ids, np.int32), zeros.astype(np.float32), "stop", zeros.astype(np.int32))

    def _write(self, text: str) -> None:
        self.output.write(text)
        self.output.flush()


def play(setup: TaskSetup, weights: dict, source: TextIO | None = None, output: TextIO | None = None) -> Episode:
    """Play one episode of the test split, with the example that `play.seed` selects."""
    c, roles = setup.config.play, setup.roles
    reader, writer = source or sys.stdin, output or sys.stdout
    if not -1 <= c.seat < len(roles):
        raise RunError(f"config.play.seat is {c.seat}, but must be 0 to {len(roles) - 1}, or -1 to watch")
    if c.opponent and not is_remote(c.opponent):
        rule = "'' for the policies of the run, or a remote model (http://HOST:PORT/v1#MODEL)"
        raise RunError(f"config.play.opponent is {c.opponent!r} with a task, but must be {rule}")
    lock = asyncio.Lock()
    speakers, numbers = [], {}
    for seat, role in enumerate(roles):
        for policy in setup.players.policies(seat):
            speaker = setup.speakers(c.temperature)[policy]
            if c.opponent and seat != c.seat:
                speaker = remote_speaker(c.opponent, speaker.sampling, setup.remote_models)
            place = Terminal(role, speaker, reader, writer, lock, person=seat == c.seat, shown=c.seat == -1)
            numbers[seat, policy] = len(speakers)
            speakers.append(dataclasses.replace(speaker, sampler=place))

    def seating(seat: int, turn: int) -> int:
        return numbers[seat, setup.players.policy_at(seat, turn)]

    examples = setup.task.examples(PART)
    job = Job(0, c.seed, 0, examples[c.seed % len(examples)])
    runner = setup.runner(c.temperature, c.seed, speakers=speakers, seating=seating, time_limit=PATIENCE)
    setup.sampler.publish(weights, version=0)
    with contextlib.closing(runner), jax.set_mesh(setup.mesh):
        episode = runner.play([job])[0]
    writer.write(_ending(episode, roles))
    return episode


def _ending(episode: Episode, roles: Sequence[str]) -> str:
    if episode.failed:
        return f"\nThe episode ended early ({episode.failed}).\n"
    outcome = episode.outcome
    assert outcome is not None
    lines = [f"\nSuccess: {float(outcome.success):g} ({outcome.reason})."]
    lines += [f"{name.replace('_', ' ')}: {float(value):g}" for name, value in outcome.metrics.items()]
    lines += [f"{name}: {value:g}" for name, value in episode_metrics.rewards(episode, roles).items()]
    return "\n".join(lines) + "\n"
