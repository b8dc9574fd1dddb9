"""Cost and benefit of `algo.refill` in short runs on the built-in model.

    python -m benchmarks.refill                                    # a few minutes on two CPU cores
    python -m benchmarks.refill --steps=20 --refill 0 1 3 9

    game    Plan-Path on 5x5, one agent, GRPO with 4 episodes per start; only reaching the goal is rewarded
    task    a completion is right if it begins with one of a few bytes; GRPO with 8 completions per example

Prints a table. Columns are means over the updates after the first two, which compile programs: the fraction of
informative groups in the batch, its informative completions, the tokens of all rollouts of an update, tokens per
informative completion, extra rollouts, the fraction of groups (in the game: starts) that they replaced, and the seconds
per update.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

from ml_collections import ConfigDict

from configs import algorithms, defaults, planning
from envs.tasks import TASKS
from envs.tasks.task import Outcome, Task
from marl_jax.modes import train
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate

WARM_UP = 2


@dataclasses.dataclass(frozen=True)
class FirstByte(Task):
    """A task that a random model solves in a given fraction of episodes."""

    share: float = 1 / 32
    n: int = 4096

    roles = ("writer",)

    def examples(self, part: str) -> list[str]:
        """Return numbered questions."""
        return [f"{part} {i:05d}" for i in range(self.n)]

    async def play(self, ask, example: str) -> Outcome:
        """Reward a completion if its first byte is among the first `share` of all bytes."""
        reply = await ask.chat(0).say(example)
        right = reply.text.encode()[:1] < bytes([round(256 * self.share)])
        reply.reward(team=float(right))
        return Outcome(float(right))


def game_config() -> ConfigDict:
    """Return the config of Plan-Path with a sparse reward.

    The rows of a start form one group.
    """
    dense = dict.fromkeys(("step_reward", "invalid_reward", "shaping_reward", "shortest_reward"), 0.0)
    config = planning.puzzle("plan_path", "grpo", 10, size=5, n_train=256, n_test=16, **dense)
    config.rollout.update(dict(num_envs=128, unroll_length=10))
    return config


def task_config() -> ConfigDict:
    """Return the config of `FirstByte`."""
    config = defaults.get_config()
    defaults.use_task(config, "first_byte")
    config.task.update(dict(n_episodes=256, max_new_tokens=8, max_length=128, max_num_seqs=64))
    config.algo = algorithms.grpo(8, minibatches=2)
    return config


CASES = {"game": game_config, "task": task_config}


def measure(name: str, refill: int, steps: int) -> dict[str, float]:
    """Train for a few steps and return the means of a row of the table."""
    config = CASES[name]()
    config.steps = steps
    config.algo.refill = refill
    config.optim.update(dict(lr=1e-4, schedule="constant", warmup=1))
    config.eval.every = 0
    config.checkpoint.update(dict(every=steps, best_metric=""))
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    validate.check(config)
    with tempfile.TemporaryDirectory() as folder:
        train.train(config, Path(folder))
        rows = read_json_lines(Path(folder) / "metrics.jsonl")[WARM_UP:]

    def mean(metric: str) -> float:
        return sum(row.get(metric, 0.0) for row in rows) / len(rows)

    informative = mean("completions_trained")
    return {
        "informative groups": 1 - mean("zero_std_groups"),
        "informative completions": informative,
        "tokens": mean("tokens"),
        "tokens per informative": mean("tokens") / max(informative, 1e-9),
        "extra rollouts": mean("refill/rollouts"),
        "replaced": mean("refill/replaced"),
        "seconds": mean("seconds/rollout") + mean("seconds/update"),
    }


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--refill", nargs="+", type=int, default=[0, 1, 3, 9])
    parser.add_argument("--steps", type=int, default=8, help="Number of updates per run; the first two are not counted")
    args = parser.parse_args()
    TASKS.add("first_byte", "benchmarks.refill:FirstByte")
    for number, (name, refill) in enumerate((name, refill) for name in args.cases for refill in args.refill):
        row = measure(name, refill, args.steps)
        if not number:
            print("| case | refill | " + " | ".join(row) + " |")
            print("| --- " * (2 + len(row)) + "|")
        print(f"| {name} | {refill} | " + " | ".join(f"{value:.3g}" for value in row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
