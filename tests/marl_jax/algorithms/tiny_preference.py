"""A planted preference that is learned in seconds: the completion that repeats the letter of the prompt is chosen."""

import itertools
import json
import random

from configs import algorithms
from tests.marl_jax import tiny_verifier

ALGORITHMS = {"dpo": algorithms.dpo, "ipo": algorithms.ipo, "reward_model": algorithms.reward_model}


def pairs(n, seed=0):
    """At most 3600 pairs with different prompts, as lines of a file."""
    rng = random.Random(seed)
    rows = []
    for number, chosen in rng.sample(list(itertools.product(range(100, 1000), tiny_verifier.LETTERS)), n):
        rejected = rng.choice(tiny_verifier.LETTERS.replace(chosen, ""))
        rows.append({"prompt": tiny_verifier.chat(chosen, "", number)[:1], "chosen": chosen, "rejected": rejected})
    return rows


def write_pairs(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def get_config(variant="dpo", data=""):
    """The model and task of `tiny_verifier`, trained on the pairs of a file."""
    config = tiny_verifier.get_config()
    config.name = "tiny_preference"
    config.algo = ALGORITHMS[variant](data=data, n_pairs=32)
    config.steps = 60 if variant == "reward_model" else 100
    # With a falling rate, two letters may stay confused: the first 11 of 12 kinds of pairs are learned much earlier.
    config.optim.schedule = "linear" if variant == "reward_model" else "constant"
    config.eval.every = 0
    config.checkpoint.update(dict(every=config.steps, best_metric=""))
    return config
