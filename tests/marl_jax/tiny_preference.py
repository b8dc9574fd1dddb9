"""A planted preference that is learned in seconds: the completion that repeats the letter of the prompt is chosen."""

import json
import random

from configs import algorithms
from tests.marl_jax import tiny_verifier

ALGORITHMS = {"dpo": algorithms.dpo, "ipo": algorithms.ipo, "reward_model": algorithms.reward_model}


def pairs(n, seed=0):
    """Pairs with different prompts, as lines of a file."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        chosen, rejected = rng.sample(tiny_verifier.LETTERS, 2)
        (prompt,) = tiny_verifier.chat(chosen, "", rng.randint(100, 999))[:1]
        rows.append({"prompt": [prompt], "chosen": chosen, "rejected": rejected})
    return rows


def write_pairs(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def get_config(variant="dpo", data=""):
    """The model and task of `tiny_verifier`, trained on the pairs of a file."""
    config = tiny_verifier.get_config()
    config.name = "tiny_preference"
    config.algo = ALGORITHMS[variant](data=data, n_pairs=32)
    config.steps = 60
    config.eval.every = 0
    config.checkpoint.update(dict(every=60, best_metric=""))
    return config
