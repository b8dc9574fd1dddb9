"""QMIX: a network that depends on the state mixes the values of all seats monotonically.

    Q_tot(s, u) = f_s(Q_1(o_1, u_1), …, Q_n(o_n, u_n)),  ∂f_s / ∂Q_i ≥ 0

The weights of f_s are linear in the hidden state of a critic that reads the views of all seats (`critics.mix`).
Everything else is VDN.
"""

from __future__ import annotations

from marl_jax.algorithms import qmix_config, vdn
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.algorithms.qmix_config import QMIXSettings

QMIX = Algorithm(
    "qmix",
    QMIXSettings,
    vdn.rollout,
    vdn.compute_advantages,
    vdn.TemporalDifference(),
    critic=True,
    check=qmix_config.check,
)
