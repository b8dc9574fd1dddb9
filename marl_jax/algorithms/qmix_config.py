"""Settings and checks of QMIX. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses

from marl_jax.algorithms.common_config import check_factored
from marl_jax.algorithms.vdn_config import VDNSettings

check = check_factored


@dataclasses.dataclass(frozen=True, kw_only=True)
class QMIXSettings(VDNSettings):
    """Settings of QMIX."""

    critic: str = "q_mixed"
