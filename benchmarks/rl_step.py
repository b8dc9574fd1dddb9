"""Time of a training step, as a JSON line and a table.

    python -m benchmarks.rl_step
    python -m benchmarks.rl_step --share=1      # one row per completion, so the learner reads prompts repeatedly

The model has Qwen2.5-0.5B's shape and random weights. It samples `--completions` completions of `--new` tokens for
prompts of `--prompt` tokens in groups of `--group`, at temperature 1 and without KL. The rollout is `answering.act`,
which prefills each prompt once and repeats its cache. A row of samples is a prompt with all completions of its group.
The update is AT-GRPO's `compute_advantages` and `update.make_update` with its objective and settings, AdamW, master
weights and moments in float32, and bfloat16 arithmetic. The rollout includes the conversion of the new weights for the
sampler. Rewards are random. Each time is the median of `--repeats` steps after the first one.

`mfu` is the number of operations over seconds · 790 TFLOP/s, the rate of a large bf16 matrix product measured on an
H200. Operations are 2 · parameters · tokens in the rollout and 6 · parameters · tokens in the update, where prompts
count as often as they are read.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sampler import FLOPS_PER_S, report
from benchmarks.update import GIB, make_policy
from configs import defaults
from marl_jax.agents import answering
from marl_jax.algorithms import ALGORITHMS
from marl_jax.devices.aot import compiler_options
from marl_jax.learning.optimizer import make_optimizer
from marl_jax.learning.update import make_update, new_train_state
from marl_jax.samples import Samples, from_prompts, row_length


def rollout(policy, group: int, share: int, weights: dict, prompts: jax.Array, key: jax.Array) -> Samples:
    """Sample `group` completions per prompt, int32 [G, T], in rows of `share` completions."""
    groups, time = prompts.shape
    n = groups * group
    decision = answering.act(
        policy, policy.prepare_for_sampling(weights), prompts, jnp.full((groups,), time, jnp.int32),
        jnp.ones((groups, 1), bool), jax.random.split(key, n), jnp.zeros((groups,), jnp.int32), candidates=group,
    )  # fmt: skip
    rows = n // share
    number = jnp.arange(n, dtype=jnp.int32)
    in_rows = lambda x: x.reshape(rows, share, *x.shape[1:])  # noqa: E731
    room = row_length(time, policy.width if share == 1 else 1) - time  # for a single completion after its prompt
    return from_prompts(
        jnp.repeat(jnp.pad(prompts, ((0, 0), (0, room))), group // share, axis=0), jnp.full((rows,), time, jnp.int32),
        in_rows(decision.answers), in_rows(decision.lengths), in_rows(decision.logps),
        rewards=in_rows(jax.random.uniform(jax.random.fold_in(key, 1), (n, 1))),
        group=in_rows(number // group), member=in_rows(number % group), n_groups=groups, group_size=group,
    )  # fmt: skip


def main():
    """Run the benchmark and print its results."""
    gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-0.5b" if gpu else "tiny")
    parser.add_argument("--completions", type=int, default=256 if gpu else 16)
    parser.add_argument("--group", type=int, default=8 if gpu else 4)
    parser.add_argument("--prompt", type=int, default=256 if gpu else 16)
    parser.add_argument("--new", type=int, default=256 if gpu else 16)
    parser.add_argument(
        "--share", type=int, default=None, help="Number of completions that share a prompt in the update"
    )
    parser.add_argument("--grad_accum_steps", type=int, default=1)
    parser.add_argument("--remat", default="none")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    share = args.group if args.share is None else args.share
    policy = make_policy(args.model, args.new, dtype, remat=args.remat)
    optim, algorithm = defaults.optimizer(), ALGORITHMS.get("at_grpo")
    algo = algorithm.settings(
        group_size=args.group, minibatches=1, tis_clip=0.0, grad_accum_steps=args.grad_accum_steps
    )
    optim.update(dict(lr=1e-6, schedule="constant", warmup=0))
    optimizer = make_optimizer(optim, 1, 1)
    cfg, n = policy.model.cfg, args.completions

    update = make_update(policy, optimizer, algorithm.objective, algo)

    def learn(train_state, samples, key):
        samples, more = algorithm.compute_advantages(policy, train_state.weights, samples, algo)
        train_state, metrics = update(train_state, samples, key)
        return train_state, {**metrics, **more}

    options = compiler_options()
    play = jax.jit(lambda *given: rollout(policy, args.group, share, *given), compiler_options=options)
    learn = jax.jit(learn, donate_argnums=(0,), compiler_options=options)
    start = jax.jit(lambda key: new_train_state(*policy.init(policy.model.init(key), key), optimizer))
    train_state = start(jax.random.key(0))
    prompts = jax.random.randint(jax.random.key(0), (n // args.group, args.prompt), 0, cfg.vocab_size)

    laps = []
    for step in range(args.repeats + 1):
        key = jax.random.key(step)
        begin = time.perf_counter()
        samples = jax.block_until_ready(play(train_state.weights, prompts, key))
        played = time.perf_counter()
        train_state, metrics = jax.block_until_ready(learn(train_state, samples, key))
        laps.append((played - begin, time.perf_counter() - played))
    rollout_s, update_s = np.median(laps[1:], axis=0)
    total = float(np.median(np.sum(laps[1:], axis=1)))

    written = n * args.new
    sampled = n // args.group * args.prompt + written
    learnt = n // share * args.prompt + written - n
    flops = 2 * cfg.n_params * sampled, 6 * cfg.n_params * learnt
    stats = jax.devices()[0].memory_stats() or {}
    report(
        case="rl_step", model=args.model, completions=n, prompt=args.prompt, new=args.new, group=args.group,
        share=share, device=jax.devices()[0].device_kind, total_s=total, rollout_s=rollout_s, update_s=update_s,
        tokens_per_s=written / total, mfu=sum(flops) / total / FLOPS_PER_S, logprob_diff=float(metrics["logprob_diff"]),
        loss=float(metrics["loss"]), grad_norm=float(metrics["grad_norm"]),
        peak_gib=stats.get("peak_bytes_in_use", 0) / GIB, first_step_s=sum(laps[0]),
    )  # fmt: skip
    print("| phase | s | tokens | MFU |\n| --- | --- | --- | --- |")
    for phase, seconds, tokens, work in (
        ("rollout", rollout_s, sampled, flops[0]),
        ("update", update_s, learnt, flops[1]),
        ("whole step", total, sampled + learnt, sum(flops)),
    ):
        print(f"| {phase} | {seconds:.3f} | {tokens:,} | {work / seconds / FLOPS_PER_S:.1%} |")


if __name__ == "__main__":
    main()
