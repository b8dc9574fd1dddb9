"""Samples of a host rollout on the mesh: every process puts its own rows where the learner finds those of all."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marl_jax.devices import placement
from marl_jax.samples import Samples


def place(mesh: Mesh, samples: Samples) -> Samples:
    """The samples of all processes, split over the mesh by their rows.

    Processes have equally many rows of equal sizes, and `answer_at` counts rows as if those of a process stood one
    behind the other; where its devices lie elsewhere on the mesh, it is changed accordingly.
    """
    by_rows = NamedSharding(mesh, PartitionSpec(placement.ROWS))
    count, n = jax.process_count(), samples.n
    order = samples.answer_at
    if order is not None:
        order = _global_order(order, samples, _rows_of_processes(by_rows, count, n))
        order = jax.device_put(order, placement.replicated(mesh))
    put = lambda x: jax.make_array_from_process_local_data(by_rows, x, (count * n, *x.shape[1:]))  # noqa: E731
    return jax.tree.map(put, samples.replace(answer_at=None)).replace(answer_at=order)


def _rows_of_processes(sharding: NamedSharding, count: int, n: int) -> np.ndarray:
    """int [count · n]: for row r of process p, at p · n + r, its number on the mesh."""
    rows: list[set[int]] = [set() for _ in range(count)]
    for device, (taken, *_) in sharding.devices_indices_map((count * n,)).items():
        rows[device.process_index].update(range(count * n)[taken])
    return np.concatenate([sorted(found) for found in rows])


def _global_order(order: np.ndarray, samples: Samples, numbers: np.ndarray) -> np.ndarray:
    """int32 [R, B]: the turns of the games of all processes, with the numbers of rows on the mesh."""
    if jax.process_count() > 1:
        order = np.concatenate(multihost_utils.process_allgather(order), axis=1)
    row, answer = np.divmod(order, samples.n_answers)
    return (numbers[row] * samples.n_answers + answer).astype(np.int32)
