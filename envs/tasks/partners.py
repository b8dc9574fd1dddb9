"""Strategies of context agents over time: fixed, drawn from a pool, or switching.

The strategy of an episode depends on the example and the training step only. So all episodes that an algorithm compares
meet the same partner, and an interrupted step repeats it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Mapping
from typing import Any

from envs.tasks.data import Dataset, from_list
from envs.tasks.task import Ask
from registries import did_you_mean

SCHEDULES = ("fixed", "pool", "switch", "each")


@dataclasses.dataclass(frozen=True)
class Partners:
    """Schedule of a context agent's strategies.

    Attributes:
        names: Names of the strategies.
        schedule: "fixed" uses the first strategy; "pool" draws one for every example and step; "switch" moves to the
            next strategy at each update of `switch_at`, cyclically; "each" assigns them to the examples in turn, for
            evaluations.
        switch_at: Updates at which "switch" moves on, in ascending order.
    """

    names: tuple[str, ...]
    schedule: str = "fixed"
    switch_at: tuple[int, ...] = ()

    def check(self, known: Collection[str]) -> None:
        """Raise a ValueError for the first wrong value; `known` are the names of all strategies."""
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}, but must be one of: {', '.join(SCHEDULES)}")
        if not self.names:
            raise ValueError(f"partners is empty, but must name at least one of: {', '.join(known)}")
        for name in self.names:
            if name not in known:
                raise ValueError(
                    f"partners contains {name!r}, but must contain only: {', '.join(known)}{did_you_mean(name, known)}"
                )
        if (self.schedule == "switch") != bool(self.switch_at):
            raise ValueError(
                f"switch_at is {self.switch_at} with the schedule {self.schedule!r}, but must be given for 'switch', "
                "and only for it"
            )
        if list(self.switch_at) != sorted(set(self.switch_at)) or min(self.switch_at, default=1) < 1:
            raise ValueError(f"switch_at is {self.switch_at}, but must be ascending updates >= 1")

    def assign(self, examples: Dataset) -> Dataset:
        """Return the examples, with a strategy for each one if the schedule is "each"."""
        if self.schedule != "each":
            return examples
        rows = ({**examples[i], "partner": self.names[i % len(self.names)]} for i in range(len(examples)))
        return from_list(rows, examples.name)

    def at(self, step: int, example: Mapping[str, Any]) -> str:
        """Return the strategy of an episode."""
        if self.schedule == "each":
            return example["partner"]
        if self.schedule == "pool":
            return random.Random(f"partner {step} {example['key']}").choice(self.names)
        return self.names[sum(update <= step for update in self.switch_at) % len(self.names)]


def shared_random(ask: Ask, example: Mapping[str, Any]) -> random.Random:
    """Return a generator that is the same in all episodes of an example and step."""
    return random.Random(f"context {ask.step} {example['key']}")
