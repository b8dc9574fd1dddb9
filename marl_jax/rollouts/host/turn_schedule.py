"""Which turns of a chat contribute to the loss: all, some, or one after the other in blocks of steps."""

from __future__ import annotations

import dataclasses

import numpy as np

from marl_jax.samples import Samples


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
