"""Steps per second of vector environments under random play, as JSON lines.

    python -m benchmarks.vector_env                             # tic-tac-toe and connect four, 1 to 4,096 copies
    python -m benchmarks.vector_env --games tic_tac_toe --num_envs 1024

Every subject is driven from Python: actions go in as NumPy arrays; observations, masks, rewards and ends come back as
NumPy arrays. Only the time inside `step` counts. The subjects are measured in turn, in one process:

    marl_jax               `GymVectorEnv`
    pgx                    a jitted, vmapped step with its `auto_reset`, if pgx is installed
    gymnasium sync         Gymnasium's `SyncVectorEnv` over `GymEnv`, the same game (up to --sync copies)
    gymnasium cart pole    Gymnasium's own vector environment of another, simpler task, in NumPy

steps_per_s:     copies × steps / wall time inside `step`, the best of the repeats
steps_per_cpu_s: the same by CPU time of all threads, which other processes on the machine affect less
load:            load average of the machine
"""

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator

import gymnasium
import jax
import numpy as np
from gymnasium.vector import SyncVectorEnv

from envs.adapters.gym import GymEnv
from envs.adapters.vector import GymVectorEnv
from envs.games.registry import make

Stepping = Callable[[np.ndarray], np.ndarray | None]
"""Actions → masks of legal actions [N, A], or None if all are legal."""


def ours(game: str, n: int) -> tuple[Stepping, np.ndarray | None]:
    """Return the step of `GymVectorEnv` and the first masks."""
    return _stepping(GymVectorEnv(make(game), n))


def sync(game: str, n: int) -> tuple[Stepping, np.ndarray | None]:
    """Return the step of Gymnasium's `SyncVectorEnv` over `GymEnv` and the first masks."""
    rules = make(game)
    return _stepping(SyncVectorEnv([lambda: GymEnv(rules)] * n))


def _stepping(envs: gymnasium.vector.VectorEnv) -> tuple[Stepping, np.ndarray | None]:
    seen, _ = envs.reset(seed=0)
    return lambda actions: envs.step(actions)[0]["action_mask"], seen["action_mask"]


def cart_pole(n: int) -> tuple[Stepping, np.ndarray | None]:
    """Return the step of Gymnasium's own vector environment."""
    envs = gymnasium.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)

    def step(actions: np.ndarray) -> None:
        envs.step(actions)

    return step, None


def pgx(game: str, n: int) -> tuple[Stepping, np.ndarray | None]:
    """Return the step of the same game in pgx and the first masks."""
    import pgx as library
    from pgx.experimental import auto_reset

    env = library.make(game)
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), n))

    def turn(states, actions, key):
        keys = jax.random.split(key, n)
        states = jax.vmap(auto_reset(env.step, env.init))(states, actions, keys)
        seen = (states.observation, states.legal_action_mask, states.rewards, states.terminated, states.current_player)
        return states, seen, jax.random.split(key)[0]

    jitted = jax.jit(turn, donate_argnums=0)
    carry = [states, jax.random.key(1)]

    def step(actions: np.ndarray) -> np.ndarray:
        carry[0], seen, carry[1] = jitted(carry[0], actions, carry[1])
        return jax.device_get(seen)[1]

    return step, np.asarray(states.legal_action_mask)


def measure(step: Stepping, masks: np.ndarray | None, n: int, seconds: float, repeats: int) -> tuple[float, float]:
    """Return the most steps per second, by wall time and by CPU time."""
    rng, best = np.random.default_rng(0), (0.0, 0.0)
    for repeat in range(repeats + 1):  # the first compiles
        spent = np.zeros(2)
        steps = 0
        while spent[0] < (seconds if repeat else 0) or not steps:
            luck = rng.random((n, 2 if masks is None else masks.shape[1]), np.float32)
            actions = (luck if masks is None else luck * masks).argmax(axis=1).astype(np.int32)
            start = np.array([time.perf_counter(), time.process_time()])
            masks = step(actions)
            spent += np.array([time.perf_counter(), time.process_time()]) - start
            steps += 1
        if repeat:
            wall, cpu = n * steps / spent
            best = max(best[0], wall), max(best[1], cpu)
    return best


def subjects(game: str, n: int, most: int) -> Iterator[tuple[str, Callable]]:
    """Yield the subjects of a game with n copies: name and factory."""
    yield "marl_jax", lambda: ours(game, n)
    if importlib.util.find_spec("pgx"):
        yield "pgx", lambda: pgx(game, n)
    if n <= most:
        yield "gymnasium sync", lambda: sync(game, n)
    yield "gymnasium cart pole", lambda: cart_pole(n)


def main() -> None:
    """Measure all subjects and print a JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["tic_tac_toe", "connect_four"])
    parser.add_argument("--num_envs", nargs="+", type=int, default=[1, 64, 1024, 4096])
    parser.add_argument("--sync", type=int, default=64, help="largest number of copies in SyncVectorEnv")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    for game in flags.games:
        for n in flags.num_envs:
            for library, make_subject in subjects(game, n, flags.sync):
                wall, cpu = measure(*make_subject(), n, flags.seconds, flags.repeats)
                row = dict(game=game, num_envs=n, library=library, steps_per_s=round(wall), steps_per_cpu_s=round(cpu))
                print(json.dumps(row | dict(load=round(os.getloadavg()[0], 1))), flush=True)


if __name__ == "__main__":
    main()
