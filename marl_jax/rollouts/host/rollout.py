"""The rollout of host tasks: coroutines that share one batcher, collated into `Samples`.

The examples of a step are a function of seed, epoch and index. The seeds of completions derive from the seed of the
run, the step, the example, the sample, the seat and the turn. So a rollout does not depend on the order in which
completions arrive, and an interrupted rollout can be repeated; see `marl_jax.rollouts.host.journal`.

With `refill` a step plays further examples while some of its examples are uninformative, and trains on informative ones
instead. Metrics describe the first rollout, except that `tokens` and the seconds count all rollouts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envs.tasks.data import order
from marl_jax.errors import RunError, RunStopped
from marl_jax.rollouts.host import journal as journals
from marl_jax.rollouts.host import metrics as episode_metrics
from marl_jax.rollouts.host.collate import collate, pack, sizes_for
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import Episode, EpisodeRunner, Job
from marl_jax.rollouts.host.journal import Journal
from marl_jax.rollouts.host.refill import informative_examples
from marl_jax.rollouts.host.sizes import Sizes, choose
from marl_jax.running.garbage import rare_collections
from marl_jax.samples import Samples

State = dict[str, Any]
"""State of the rollout, a JSON value {"seed", "position", "step", "sizes"}.

The position counts the examples of all epochs so far. The sizes are those in use (`sizes.choose`), each a list.
"""

FAILED_STEPS = 3
"""Number of consecutive steps with only failed episodes that ends the run."""


@dataclasses.dataclass(frozen=True)
class TurnSchedule:
    """Schedule of the turns and seats that learn, a function of the step.

    Attributes:
        turns: Turns that learn, counted from 0, in the order in which blocks train them; () for all turns.
        block: Number of steps for which one of the turns learns before the next, cyclically; 0 trains all at once.
        seats: Seats that learn, in the order in which blocks train them.
        seat_block: The same for the seats.
    """

    turns: tuple[int, ...] = ()
    block: int = 0
    seats: tuple[int, ...] = ()
    seat_block: int = 0

    def at(self, step: int) -> tuple[int, ...]:
        """Return the turns that learn at a step; () for all."""
        return (self.turns[step // self.block % len(self.turns)],) if self.block else self.turns

    def seats_at(self, step: int) -> tuple[int, ...]:
        """Return the seats that learn at a step; () for all."""
        return (self.seats[step // self.seat_block % len(self.seats)],) if self.seat_block else ()

    def weigh(self, samples: Samples, step: int) -> Samples:
        """Set the loss weights of other turns and seats to 0; rewards and values stay."""
        for chosen, of in ((self.at(step), samples.turn), (self.seats_at(step), samples.seat)):
            if chosen:
                samples = samples.replace(loss_weights=samples.loss_weights * np.isin(of, chosen))
        return samples

    def metrics(self, step: int) -> dict[str, float]:
        """Return the turn and the seat of the current block, if there are blocks."""
        turn = {"train_turn": float(self.at(step)[0])} if self.block else {}
        return turn | ({"train_seat": float(self.seats_at(step)[0])} if self.seat_block else {})


@dataclasses.dataclass(eq=False)
class HostRollout:
    """A `Rollout` of a host task, which is not jitted.

    Attributes:
        runner: Runner of the episodes.
        n_examples: Number of examples per step, over all processes.
        samples: Number of episodes per example: K of GRPO, 1 for AT-GRPO.
        split: Split of the examples.
        reward_levels: Weights of team, agent and process rewards.
        time_order: Whether advantages are computed over time (PPO); otherwise completions are compared in groups.
        schedule: Schedule of the turns that contribute to the loss.
        refill: Maximum number of extra rollouts per step that replace uninformative examples.
        journal: Folder of the journals; None if interrupted steps need not be repeated exactly.
        process: Index of this process and number of processes; each plays its share of the examples.
        gather: Gathers a JSON value from all processes, in order.
        publish: Sends new weights to the samplers; by default, those of each speaker's backbone to its sampler.
        place: Puts the samples of this process on the mesh, among those of all processes; by default they stay NumPy
            arrays.
        row_multiple: Divisor of N.
        remote_totals: Returns totals of the requests to remote models so far.
    """

    runner: EpisodeRunner
    n_examples: int
    samples: int = 1
    split: str = "train"
    reward_levels: Mapping[str, float] | None = None
    time_order: bool = False
    schedule: TurnSchedule = TurnSchedule()
    refill: int = 0
    journal: str | Path | None = None
    process: tuple[int, int] = (0, 1)
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    publish: Callable[[Mapping[str, Any], int], None] | None = None
    place: Callable[[Samples], Samples] = lambda samples: samples
    row_multiple: int = 1
    remote_totals: Callable[[], Mapping[str, float]] = dict

    jitted: ClassVar[bool] = False

    def __post_init__(self):
        count = self.process[1]
        if self.n_examples < 1 or self.n_examples % count:
            raise ValueError(
                f"n_examples is {self.n_examples}, but must be a multiple of the number of processes ({count})"
            )
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples}, but must be >= 1")
        if self.refill and self.time_order:
            raise ValueError(f"refill is {self.refill}, but there are no groups with time_order. Set it to 0.")
        self.examples = self.runner.task.examples(self.split)
        if not len(self.examples):
            raise RunError(f"the task has no examples in the split {self.split!r}")
        self._failed = 0  # consecutive steps with only failed episodes

    def init(self, key: Any, params: Any) -> State:
        """Return the state at the beginning of the data; key and params are not used."""
        return {"seed": self.runner.seed, "position": 0, "step": 0, "sizes": []}

    def __call__(self, params: Mapping[str, Any], state: State, key: Any = None) -> tuple[Samples, State, dict]:
        """Play the next examples with the given weights.

        The key is not used, because seeds follow from the state.
        """
        with rare_collections():
            return self._played(params, state)

    def _played(self, params: Mapping[str, Any], state: State) -> tuple[Samples, State, dict]:
        step = int(state["step"])
        (self.publish or self._publish)(params, step)
        jobs = self.jobs(state)
        number = self.process[0]
        header = {"seed": int(state["seed"]), "step": step, "jobs": [jobs[0].id, jobs[-1].id], "process": number}
        journal = Journal(journals.path_of(self.journal, step, number), header)
        before, requested = self._sampler_seconds(), self.remote_totals()
        try:
            first = self._play(jobs, journal)
            self._check_candidates(first)
            totals = episode_metrics.totals(first, self.runner.task.roles)
            episodes, rollouts = first, 1
            if self.refill:
                episodes, rollouts, refilled = self._refilled(first, state, journal)
                totals |= refilled | {"tokens": [totals["tokens"][0] + refilled["tokens"][0], 0]}
        finally:
            journal.close()
        sizes = self._sizes(episodes, state)
        samples = collate(
            episodes, sizes, n_seats=len(self.runner.task.roles), reward_levels=self.reward_levels,
            time_order=self.time_order, process=self.process,
        )  # fmt: skip
        samples = samples.replace(longest=max(speaker.sampling.max_new_tokens for speaker in self._local))
        spent = {f"seconds/{name}": [now - then, 1] for (name, now), then in
                 zip(self._sampler_seconds().items(), before.values(), strict=True)}  # fmt: skip
        totals |= spent
        totals |= {f"remote/{name}": [now - requested[name], 0] for name, now in self.remote_totals().items()}
        metrics = episode_metrics.means(episode_metrics.merge(self.gather(totals))) | self.schedule.metrics(step)
        self._failed = 0 if metrics["episodes/finished"] else self._failed + 1
        if self._failed == FAILED_STEPS:
            journals.discard_from(
                self.journal, step + 1 - FAILED_STEPS, number
            )  # so that a resumed run does not repeat the failures
            raise RunError(
                f"all episodes of {FAILED_STEPS} consecutive steps failed; the last error: {first[-1].error}. The same "
                "command resumes from the newest checkpoint"
            )
        return self.place(self.schedule.weigh(samples, step)), self._advance(state, sizes, rollouts), metrics

    def _refilled(
        self, first: Sequence[Episode], state: State, journal: Journal
    ) -> tuple[list[Episode], int, episode_metrics.Totals]:
        """Replace uninformative examples by informative ones from the next positions of the data.

        All processes play another rollout while any of them has an uninformative example. A process that has none skips
        its share. The loop ends after a rollout in which every episode failed.

        Returns:
            The episodes to train on, the number of rollouts including the first, and totals of metrics.
        """
        kept, last, rollouts, replaced, tokens = self._by_example(first), first, 1, 0, 0.0
        while rollouts <= self.refill:
            lacking = [i for i, informative in enumerate(self._informative(kept, state)) if not informative]
            finished = any(not episode.failed for episode in last)
            lacks, finishes = zip(*self.gather([bool(lacking), finished]), strict=True)
            if not any(lacks) or not any(finishes):
                break
            jobs = self.jobs(state, rollouts) if lacking else []
            last = self._play(jobs, journal)
            rollouts += 1
            tokens += episode_metrics.totals(last, self.runner.task.roles)["tokens"][0]
            others = self._by_example(last)
            informative = itertools.compress(others, self._informative(others, state))
            for place, example in zip(lacking, informative, strict=False):
                kept[place] = example
                replaced += 1
        totals: episode_metrics.Totals = {
            "tokens": [tokens, 0],
            "refill/rollouts": [rollouts - 1, 1],
            "refill/replaced": [replaced, len(kept)],
        }
        return [episode for example in kept for episode in example], rollouts, totals

    def _by_example(self, episodes: Sequence[Episode]) -> list[Sequence[Episode]]:
        return [episodes[i : i + self.samples] for i in range(0, len(episodes), self.samples)]

    def _informative(self, examples: Sequence[Sequence[Episode]], state: State) -> list[bool]:
        step = int(state["step"])
        return informative_examples(
            examples,
            len(self.runner.task.roles),
            self.reward_levels,
            self.schedule.at(step),
            self.schedule.seats_at(step),
        )

    def after_update(self, state: State, params: Any, step: int) -> State:
        """Return the state unchanged: weights are published when the next rollout starts."""
        return state

    def changes_after(self, step: int) -> bool:
        """Return False: `after_update` never changes the state."""
        return False

    def checkpointed(self, step: int) -> None:
        """Remove the journals of steps before a checkpoint that is on disk."""
        journals.discard_before(self.journal, step, self.process[0])

    def close(self) -> None:
        """Stop the processes and the event loop of the episodes."""
        self.runner.close()

    def jobs(self, state: State, rollout: int = 0) -> list[Job]:
        """Return this process's episodes of a rollout of the step.

        Rollouts after the first one refill the batch.
        """
        number, count = self.process
        share = self.n_examples // count
        first = int(state["position"]) + rollout * self.n_examples + number * share
        numbers = [self.example_at(int(state["seed"]), position) for position in range(first, first + share)]
        return [
            Job(int(state["step"]), position, sample, self.examples[number])
            for position, number in enumerate(numbers, first)
            for sample in range(self.samples)
        ]

    def example_at(self, seed: int, position: int) -> int:
        """Return the number of the example at a position, counted over all epochs."""
        epoch, index = divmod(position, len(self.examples))
        return order(seed, epoch, index, len(self.examples))

    @property
    def _local(self) -> list[Speaker]:
        """Speakers whose completions the learner gets."""
        return [speaker for speaker in self.runner.speakers if not speaker.remote]

    def _play(self, jobs: Sequence[Job], journal: Journal) -> list[Episode]:
        """Play episodes; a reason to stop in one process stops all of them."""
        reason = ""
        try:
            episodes = self.runner.play(jobs, journal, ended=pack)
        except RunStopped as error:
            episodes, reason = [], str(error)
        for stopped in filter(None, self.gather(reason)):
            raise RunStopped(stopped)
        return episodes

    def _sampler_seconds(self) -> dict[str, float]:
        """Return the seconds that samplers, and their devices, have worked so far."""
        samplers = {id(speaker.sampler): speaker.sampler for speaker in self.runner.speakers}.values()
        usages = [usage for sampler in samplers if (usage := getattr(sampler, "usage", None)) is not None]
        return {"generating": sum(u.seconds for u in usages), "device": sum(u.device for u in usages)}

    def _sizes(self, episodes: Sequence[Episode], state: State) -> Sizes:
        """Return the sizes of this step's batch, on which all processes agree."""
        own = sizes_for(
            episodes, samples=self.samples, candidates=self.runner.candidates, time_order=self.time_order,
            row_multiple=self.row_multiple,
        )  # fmt: skip
        needed = functools.reduce(Sizes.max, (Sizes(*sizes) for sizes in self.gather(dataclasses.astuple(own))))
        longest = None if needed.branches else max(speaker.max_length for speaker in self._local)
        said = needed.answers * max(speaker.sampling.max_new_tokens for speaker in self._local)
        return choose(needed, _in_use(state), longest, said)

    def _advance(self, state: State, sizes: Sizes, rollouts: int = 1) -> State:
        position, step = int(state["position"]) + rollouts * self.n_examples, int(state["step"]) + 1
        used = [dataclasses.astuple(one) for one in dict.fromkeys([*_in_use(state), sizes])]
        return {"seed": int(state["seed"]), "position": position, "step": step, "sizes": [list(one) for one in used]}

    def _check_candidates(self, episodes) -> None:
        """Raise an error if the task never asks for the candidates that are compared."""
        said = [said for e in episodes if not e.failed for chat in e.chats for said in chat.said]
        if self.runner.candidates > 1 and said and all(len(one.answers) == 1 for one in said):
            raise RunError(
                f"the task samples one completion per turn, but the algorithm compares {self.runner.candidates} "
                "candidates. Call say(…, n=ask.candidates) in the task, or choose an algorithm that compares episodes"
            )

    def _publish(self, params: Mapping[str, Any], version: int) -> None:
        for speaker in self.runner.speakers:
            if speaker.backbone in params:
                speaker.sampler.set_weights(speaker.policy, params[speaker.backbone], version)


def _in_use(state: State) -> list[Sizes]:
    """Return the sizes of the steps so far."""
    return [Sizes(*one) for one in state["sizes"]]
