"""Parameters for sampling on a mesh that differs from that of learning (`config.mesh.sampling`).

Learning shards parameters to save memory, whereas decoding needs all of them for every token. With "replicated" or
"tensor" they are cast and gathered once per step by a separate program, so that its cost can be measured
(`seconds/reshard`). Frozen parameters are gathered only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax


class SamplerParams:
    """Parameters for sampling by backbone name: `SamplerParams(layout, reshards)(train_states)`.

    Args:
        layout: Casts and gathers parameters for sampling, see `Team.sampling_layout`.
        reshards: Whether to call `layout`. Otherwise the parameters of the train states are returned, and the rollout
            program lays them out.
    """

    def __init__(self, layout: Callable[[dict], dict], reshards: bool):
        self.apart = reshards
        self._layout = jax.jit(layout)
        self._frozen: dict[str, dict] | None = None

    def __call__(self, states: Mapping[str, Any]) -> dict[str, dict]:
        """Return the parameters. Call this in the context of the mesh for sampling."""
        if not self.apart:
            return {name: state.weights for name, state in states.items()}
        frozen = self._frozen
        if frozen is None:
            frozen = self._frozen = self._layout({name: _sampled(state.frozen) for name, state in states.items()})
        trained = self._layout({name: _sampled(state.trained) for name, state in states.items()})
        return {name: {**frozen[name], **trained[name]} for name in trained}


def _sampled(weights: dict) -> dict:
    """Remove the reference policy, which only the learner uses."""
    return {name: part for name, part in weights.items() if name != "reference"}
