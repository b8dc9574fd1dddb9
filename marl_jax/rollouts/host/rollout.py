"""The rollout of host tasks: episodes as coroutines over the batcher, collated into `Samples`.

Which examples a step plays is a function of the seed, the epoch and the index, and the seeds of answers derive from the
run's seed, the step, the example, the sample, the seat and the turn. So a rollout does not depend on the order in which
answers arrive, and an interrupted one is repeated: see `marl_jax.rollouts.host.journal`.

With `refill` a step plays further examples while some of its own are uninformative, and trains on the informative ones
in their place. Its metrics describe the first rollout; only `tokens` and the seconds count all of them.
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
from marl_jax.errors import RunError
from marl_jax.rollouts.host import journal as journals
from marl_jax.rollouts.host import metrics as episode_metrics
from marl_jax.rollouts.host.collate import collate, pack, sizes_for
from marl_jax.rollouts.host.episodes import Episode, EpisodeRunner, Job
from marl_jax.rollouts.host.journal import Journal
from marl_jax.rollouts.host.refill import informative_examples
from marl_jax.rollouts.host.sizes import Sizes, choose
from marl_jax.running.garbage import rare_collections
from marl_jax.samples import Samples

State = dict[str, Any]
"""{"seed", "position", "step", "sizes"}: where a run is, a JSON value. The position counts the examples of all epochs
so far; the sizes are those in use (`sizes.choose`), each a list."""

FAILED_STEPS = 3
"""So many steps in a row of which every episode failed end the run: what they all need is gone."""


@dataclasses.dataclass(frozen=True)
class TurnSchedule:
    """What learns at a step follows from the number of the step alone, so a resumed run needs nothing else.

    turns  numbers of turns, from 0, in the order in which blocks train them; (): all turns
    block  steps for which one of them learns before the next does, round and round; 0: all of them at once
    """

    turns: tuple[int, ...] = ()
    block: int = 0

    def at(self, step: int) -> tuple[int, ...]:
        """The turns that learn at a step; (): all."""
        return (self.turns[step // self.block % len(self.turns)],) if self.block else self.turns

    def weigh(self, samples: Samples, step: int) -> Samples:
        """Samples whose answers of other turns have weight 0; their rewards and values stay."""
        turns = self.at(step)
        if not turns:
            return samples
        return samples.replace(loss_weights=samples.loss_weights * np.isin(samples.turn, turns))

    def metrics(self, step: int) -> dict[str, float]:
        """The turn of the block, where there are blocks."""
        return {"train_turn": float(self.at(step)[0])} if self.block else {}


@dataclasses.dataclass(eq=False)
class HostRollout:
    """A `Rollout` that is not jitted.

    runner         plays the episodes
    n_examples     examples of a step, of all processes together
    samples        episodes of each example: K of GRPO, 1 for AT-GRPO
    part           of the task's examples
    reward_levels  weights of team, agent and process rewards
    time_order     for advantages over time (PPO); without it, answers are compared in groups
    schedule       the turns that contribute to the loss
    refill         maximum number of extra rollouts per step that replace uninformative examples
    journal        folder; None: an interrupted step cannot be repeated exactly
    process        (number of this process, how many there are); each plays its share of the examples
    gather         from a JSON value of this process to those of all, in their order
    publish        hands new weights to the samplers; by default those of each speaker's backbone to its sampler
    place          puts the samples of this process where the learner finds those of all; by default they stay NumPy's
    row_multiple   N is a multiple of this
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

    jitted: ClassVar[bool] = False

    def __post_init__(self):
        count = self.process[1]
        if self.n_examples < 1 or self.n_examples % count:
            raise ValueError(f"n_examples is {self.n_examples}, but must be multiples of the {count} processes")
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples}, but must be >= 1")
        if self.refill and self.time_order:
            raise ValueError(f"refill is {self.refill}, but with time_order there are no groups. Set it to 0.")
        self.examples = self.runner.task.examples(self.split)
        if not len(self.examples):
            raise ValueError(f"the task has no examples in the split {self.split!r}")
        self._failed = 0  # steps in a row

    def init(self, key: Any, params: Any) -> State:
        """The beginning of the data; neither key nor params matter."""
        return {"seed": self.runner.seed, "position": 0, "step": 0, "sizes": []}

    def __call__(self, params: Mapping[str, Any], state: State, key: Any = None) -> tuple[Samples, State, dict]:
        """Plays the next examples with the given weights. The key is not used: seeds follow from the state."""
        with rare_collections():
            return self._played(params, state)

    def _played(self, params: Mapping[str, Any], state: State) -> tuple[Samples, State, dict]:
        step = int(state["step"])
        (self.publish or self._publish)(params, step)
        jobs = self.jobs(state)
        number = self.process[0]
        header = {"seed": int(state["seed"]), "step": step, "jobs": [jobs[0].id, jobs[-1].id], "process": number}
        journal = Journal(journals.path_of(self.journal, step, number), header)
        before = self._sampler_seconds()
        try:
            first = self.runner.play(jobs, journal, ended=pack)
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
        samples = samples.replace(longest=max(speaker.sampling.max_new_tokens for speaker in self.runner.speakers))
        spent = {f"seconds/{name}": [now - then, 1] for (name, now), then in
                 zip(self._sampler_seconds().items(), before.values(), strict=True)}  # fmt: skip
        totals |= spent
        metrics = episode_metrics.means(episode_metrics.merge(self.gather(totals))) | self.schedule.metrics(step)
        self._failed = 0 if metrics["episodes/finished"] else self._failed + 1
        if self._failed == FAILED_STEPS:
            journals.discard_from(self.journal, step + 1 - FAILED_STEPS, number)  # failures are not to be repeated
            raise RunError(
                f"every episode of {FAILED_STEPS} steps in a row failed; the last one: {first[-1].error}. The same "
                "command continues from the newest checkpoint"
            )
        return self.place(self.schedule.weigh(samples, step)), self._advance(state, sizes, rollouts), metrics

    def _refilled(
        self, first: Sequence[Episode], state: State, journal: Journal
    ) -> tuple[list[Episode], int, episode_metrics.Totals]:
        """Replace uninformative examples by informative ones from the next positions of the data.

        All processes play another rollout while any of them has an uninformative example. A process that has none
        skips its share. A rollout of which every episode failed is the last one.

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
            last = self.runner.play(jobs, journal, ended=pack)
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
        turns = self.schedule.at(int(state["step"]))
        return informative_examples(examples, len(self.runner.task.roles), self.reward_levels, turns)

    def after_update(self, state: State, params: Any, step: int) -> State:
        """Nothing to do: weights are published when the next rollout begins."""
        return state

    def changes_after(self, step: int) -> bool:
        """Whether `after_update` has anything to do after this step: never."""
        return False

    def checkpointed(self, step: int) -> None:
        """A checkpoint of this step is on disk: journals of the steps before it are removed."""
        journals.discard_before(self.journal, step, self.process[0])

    def close(self) -> None:
        """Ends the processes and the event loop of the episodes."""
        self.runner.close()

    def jobs(self, state: State, rollout: int = 0) -> list[Job]:
        """Return this process's episodes of a rollout of the step; those after the first refill the batch."""
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
        """The number of the example at a position of the data, counted through all epochs."""
        epoch, index = divmod(position, len(self.examples))
        return order(seed, epoch, index, len(self.examples))

    def _sampler_seconds(self) -> dict[str, float]:
        """How long the samplers have been at work so far, and of that how long their devices have decoded."""
        samplers = {id(speaker.sampler): speaker.sampler for speaker in self.runner.speakers}.values()
        usages = [usage for sampler in samplers if (usage := getattr(sampler, "usage", None)) is not None]
        return {"generating": sum(u.seconds for u in usages), "device": sum(u.device for u in usages)}

    def _sizes(self, episodes: Sequence[Episode], state: State) -> Sizes:
        """The sizes of this step's batch, on which all processes agree."""
        own = sizes_for(
            episodes, samples=self.samples, candidates=self.runner.candidates, time_order=self.time_order,
            row_multiple=self.row_multiple,
        )  # fmt: skip
        needed = functools.reduce(Sizes.max, (Sizes(*found) for found in self.gather(dataclasses.astuple(own))))
        longest = None if needed.branches else max(speaker.max_length for speaker in self.runner.speakers)
        said = needed.answers * max(speaker.sampling.max_new_tokens for speaker in self.runner.speakers)
        return choose(needed, _in_use(state), longest, said)

    def _advance(self, state: State, sizes: Sizes, rollouts: int = 1) -> State:
        position, step = int(state["position"]) + rollouts * self.n_examples, int(state["step"]) + 1
        used = [dataclasses.astuple(one) for one in dict.fromkeys([*_in_use(state), sizes])]
        return {"seed": int(state["seed"]), "position": position, "step": step, "sizes": [list(one) for one in used]}

    def _check_candidates(self, episodes) -> None:
        """Candidates that no task asks for leave nothing to compare."""
        said = [said for e in episodes if not e.failed for chat in e.chats for said in chat.said]
        if self.runner.candidates > 1 and said and all(len(one.answers) == 1 for one in said):
            raise RunError(
                f"the task asked for one answer at every turn, and the algorithm compares {self.runner.candidates} "
                "candidates; say(…, n=ask.candidates) asks for them, or choose an algorithm that compares episodes"
            )

    def _publish(self, params: Mapping[str, Any], version: int) -> None:
        for speaker in self.runner.speakers:
            if speaker.backbone in params:
                speaker.sampler.set_weights(speaker.policy, params[speaker.backbone], version)


def _in_use(state: State) -> list[Sizes]:
    """Return the sizes of the steps so far."""
    return [Sizes(*one) for one in state["sizes"]]
