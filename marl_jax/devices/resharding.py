"""The parameters as sampling wants them, where sampling and learning split them differently (`config.mesh.sampling`).

Learning keeps every device's share of the parameters small; writing answers reads all of them at every token. With
"replicated" or "tensor" they are cast and gathered once a step, by a program of its own, so that what it costs is
measured (`seconds/reshard`). What is never trained is gathered once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax


class SamplerParams:
    """Parameters for sampling, by the names of the backbones: `SamplerParams(layout, reshards)(train_states)`.

    Args:
      layout: casts and gathers parameters for sampling, see `Team.sampling_layout`.
      reshards: whether to call it; otherwise the train states' own parameters are used, and the rollout program lays
        them out.
    """

    def __init__(self, layout: Callable[[dict], dict], reshards: bool):
        self.apart = reshards
        self._layout = jax.jit(layout)
        self._frozen: dict[str, dict] | None = None

    def __call__(self, states: Mapping[str, Any]) -> dict[str, dict]:
        """Call in the scope of the mesh for sampling."""
        if not self.apart:
            return {name: state.weights for name, state in states.items()}
        frozen = self._frozen
        if frozen is None:
            frozen = self._frozen = self._layout({name: _sampled(state.frozen) for name, state in states.items()})
        trained = self._layout({name: _sampled(state.trained) for name, state in states.items()})
        return {name: {**frozen[name], **trained[name]} for name in trained}


def _sampled(weights: dict) -> dict:
    """Without the reference, which only the learner reads."""
    return {name: part for name, part in weights.items() if name != "reference"}
