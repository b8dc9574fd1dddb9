"""A verifier that learns in seconds: the answer to a letter is right if it is that letter."""

import json
import random

from configs import algorithms, defaults
from marl_jax.rollouts.labelled import FORMAT, LabelledCompletion, Question

LETTERS = "abcd"


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
