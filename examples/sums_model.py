"""Pretrain a small model on additions with mistakes, for teams on a CPU.

    python -m examples.sums_model sums       # sums/model, sums/train.jsonl, sums/validation.jsonl, sums/test.jsonl

The model has the shape of `tiny` in experiments. It is trained on conversations of `autogen_team.py` about sums such as
27 + 2: two rounds of a solver and a verifier with the short system prompts SOLVER and VERIFIER. Their completions come
from a teacher that forgets the second number in six of ten cases (27), and the model imitates these mistakes. Training
with a reward corrects them; docs/agents.md has the results.

The model is trained on all sums. The splits are for reinforcement learning. Set `model.weights` to the folder `model`.
"""

import argparse
import dataclasses
import json
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs import models as model_configs
from models import registry, tokenizers
from models.model import build
from models.renderer import Renderer
from models.weights.export import export

SIZES = {"test": 80, "validation": 24}  # number of sums; the others are in train.jsonl
SOLVER, VERIFIER = "Add.", "Check."
FORGETS = 0.6  # probability that the teacher forgets the second number
ROUNDS, CHATS, BATCH = 2, 8, 96  # rounds per conversation, conversations per sum and agent, batch size


def sums() -> dict[str, list[tuple[int, int]]]:
    """Return all sums of a two-digit number and 1, 2 or 3 by split."""
    pairs = [(a, b) for a in range(10, 97) for b in range(1, 4)]
    random.Random(0).shuffle(pairs)
    parts = {part: [pairs.pop() for _ in range(size)] for part, size in SIZES.items()}
    return {"train": pairs, **parts}


def question(a: int, b: int) -> str:
    """Return the question of a sum."""
    return f"{a}+{b}="


def teacher(rng: random.Random, a: int, b: int) -> str:
    """Return a completion of the teacher."""
    return str(a if rng.random() < FORGETS else a + b)


def chat(rng: random.Random, renderer: Renderer, system: str, a: int, b: int, hears: bool):
    """Generate a conversation of one agent.

    Args:
        rng: Source of randomness.
        renderer: Renders messages as tokens.
        system: System prompt.
        a: First number.
        b: Second number.
        hears: Whether the agent gets the other's number before its first completion, like the verifier.

    Returns:
        Token ids, and whether each is part of a completion.
    """
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question(a, b)}]
    ids, answers = [], []
    for number in range(ROUNDS):
        if hears or number:
            messages.append({"role": "user", "content": teacher(rng, a, b)})
        read = renderer.opening(messages)
        said = [*renderer.tokenizer.encode(teacher(rng, a, b)), renderer.tokenizer.stop_ids[0]]
        answers += [False] * (len(read) - len(ids)) + [True] * len(said)
        ids = [*read, *said]
        messages.append({"role": "assistant", "content": renderer.tokenizer.decode(said[:-1])})
    return ids, answers


def batches(steps: int):
    """Yield token ids and completion masks, both [B, T], of solvers and verifiers in turn."""
    rng, renderer = random.Random(1), Renderer(tokenizers.load("tiny"))
    known = [pair for part in sums().values() for pair in part]
    pools = [
        [chat(rng, renderer, system, a, b, hears) for a, b in known for _ in range(CHATS)]
        for system, hears in ((SOLVER, False), (VERIFIER, True))
    ]
    for step in range(steps):
        yield tuple(np.array(column) for column in zip(*rng.choices(pools[step % 2], k=BATCH), strict=True))


def train(steps: int, lr: float):
    """Train the model and return its config and weights."""
    cfg = dataclasses.replace(registry.get("tiny").config, **model_configs.tiny().shape.to_dict())
    model = build(cfg)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_onecycle_schedule(steps, lr)))

    def loss(params, ids, answers):
        hidden, _ = model.forward(params, ids[:, :-1], dtype=jnp.float32)
        errors = optax.softmax_cross_entropy_with_integer_labels(model.logits(params, hidden), ids[:, 1:])
        return jnp.mean(errors, where=answers[:, 1:])

    @jax.jit
    def update(params, state, ids, answers):
        error, gradients = jax.value_and_grad(loss)(params, ids, answers)
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, error

    params = model.init(jax.random.key(0))
    state = optimizer.init(params)
    for step, (ids, answers) in enumerate(batches(steps)):
        params, state, error = update(params, state, ids, answers)
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step}: loss per token {error:.3f}", flush=True)
    return cfg, params


def main() -> None:
    """Write the model and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    cfg, params = train(args.steps, args.lr)
    export(args.folder / "model", cfg, jax.device_get(params), tokenizer=tokenizers.load("tiny"), overwrite=True)
    for part, pairs in sums().items():
        lines = (json.dumps({"question": question(a, b), "answer": a + b}) + "\n" for a, b in pairs)
        (args.folder / f"{part}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
