"""Verifiers and preferences that are learned in seconds: the answer to a letter is right if it is that letter."""

import itertools
import json
import random

from configs import algorithms, defaults
from marl_jax.rollouts.labelled import FORMAT, LabelledCompletion, Question

LETTERS = "abcd"
FROM_PAIRS = {"dpo": algorithms.dpo, "ipo": algorithms.ipo, "reward_model": algorithms.reward_model}


def chat(letter, answer, number=123):
    """A question with an answer."""
    return [{"role": "user", "content": f"{number} {letter}"}, {"role": "assistant", "content": answer}]


def write_files(folder, n=1000, held_out=64, seed=0):
    """Labelled answers, one right and one wrong to each question, as `--mode=label` would write them."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    for part, size in (("train", n), ("validation", held_out), ("test", held_out)):
        lines = [json.dumps({"format": FORMAT, "questions": size})]
        for i in range(size):
            right, wrong = rng.sample(LETTERS, 2)
            messages = chat(right, "", rng.randint(100, 999))[:1]
            answers = (LabelledCompletion(right, True), LabelledCompletion(wrong, False))
            lines.append(Question(f"{part}/{i}", tuple(messages), answers).to_json())
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def get_config(variant=None):
    """A model of one layer, trained from scratch on `write_files`."""
    config = defaults.get_config()
    config.name = "tiny_verifier"
    config.steps = 70
    config.mesh.data = 1
    config.algo = algorithms.verifier(completions=64, per_side=1, samples=2)
    defaults.use_task(config, "arithmetic", levels=(1,), n_examples=40)
    config.task.update(dict(max_length=128, max_num_seqs=8, max_new_tokens=12))
    config.model.shape = dict(d_model=32, n_layers=1, n_heads=4, n_kv_heads=4, head_dim=8, d_ff=64, rope_theta=100.0)
    config.optim.update(dict(lr=1e-2, schedule="linear", warmup=5, b2=0.98))
    config.eval.update(dict(every=70, games=4))
    config.checkpoint.update(dict(every=60, best_metric="balanced/auc_by_question"))
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    return config


def pairs(n, seed=0):
    """At most 3600 pairs with different prompts, as lines of a file."""
    rng = random.Random(seed)
    rows = []
    for number, chosen in rng.sample(list(itertools.product(range(100, 1000), LETTERS)), n):
        rejected = rng.choice(LETTERS.replace(chosen, ""))
        rows.append({"prompt": chat(chosen, "", number)[:1], "chosen": chosen, "rejected": rejected})
    return rows


def write_pairs(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def preference_config(variant="dpo", data=""):
    """The same model and task, trained on the pairs of a file."""
    config = get_config()
    config.name = "tiny_preference"
    config.algo = FROM_PAIRS[variant](data=data, n_pairs=32)
    config.steps = 75 if variant == "reward_model" else 100
    # At a higher or falling rate, two letters may stay confused: 11 of 12 kinds of pairs are learned much earlier.
    config.optim.schedule = "constant"
    if variant == "reward_model":
        config.optim.lr = 3e-3
    config.eval.every = 0
    config.checkpoint.update(dict(every=config.steps, best_metric=""))
    return config
