"""Speed of the learner's update, as one JSON line per case and a table.

    python -m benchmarks.update                                    # all cases that fit this machine
    python -m benchmarks.update --cases=full,lora --models=qwen2.5-1.5b --remat=dots,full --unroll=0,4

Weights are random with published shapes, and tokens are random. The update is `learning.update.make_update` with GRPO's
loss and AdamW: one minibatch, one epoch, donated state. On accelerators arithmetic is in bfloat16. Master weights and
moments are in float32 unless the case says otherwise. All cases are compiled first, several at a time. Each time is the
median of `--repeats` updates after the first one.

full     all weights, 16 rows of 512 tokens, all of which are predicted
lora     LoRA of rank 32 on a bf16 base, 128 samples, prompts of 400–700 and completions of 120–320 tokens
large    7 billion parameters: LoRA of rank 32 on a bf16 base, and all weights with moments in `--moments`
share    256 completions in groups of 8, prompts of 256 tokens, prompts read 8 times (one row per completion) or once
pack     256 samples, prompts of 64–256 and completions of 16–256 tokens, in padded and in packed rows
pictures 16 rows of a picture of 8 by 8 cells and 512 predicted tokens: all weights, and LoRA on a bf16 base
prefix   1,024 one-token completions of prompts of 115 tokens with a common prefix of 66, read in every row or once

`tokens_per_s` counts all tokens of all prompts and completions except the last of each completion, however often a case
reads them, so that different ways of reading the same completions can be compared. `mfu` is 6 · parameters · those
tokens / seconds over 790 TFLOP/s, the rate of a large bf16 matrix product measured on an H200. It is given if every
token is read once and predicted (with LoRA the gradients of the base are not computed, so 4 would be the more accurate
factor). `forecast_gib` is the peak memory of the update according to the compiler, and `peak_gib` that of the process
so far according to the device.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import pictured
from benchmarks.sampler import FLOPS_PER_S, median_seconds, report
from configs import algorithms, defaults
from envs.games.registry import make as make_game
from envs.games.registry import make_medium
from marl_jax.agents.answers import FreeText
from marl_jax.agents.policy import LoraSpec, Policy
from marl_jax.algorithms import ALGORITHMS, settings_from
from marl_jax.devices.aot import compiler_options
from marl_jax.learning.optimizer import make_optimizer
from marl_jax.learning.update import TrainState, make_update, new_train_state
from marl_jax.samples import Samples, from_prompts, row_length
from models import lora, registry
from models.model import build

GIB = 2**30


@dataclasses.dataclass
class Case:
    """One benchmark; `algo` are settings of the algorithm."""

    name: str
    note: str
    model: str
    policy: Policy
    samples: Samples
    moments: str = "float32"
    param_dtype: jnp.dtype = jnp.float32
    algo: dict = dataclasses.field(default_factory=dict)
    compiled: jax.stages.Compiled | None = None
    compile_s: float = 0.0

    def make_train_state(self):
        """Return a train state with random weights, to be jitted or evaluated abstractly."""
        key = jax.random.key(0)
        weights = self.policy.init(self.policy.model.init(key, self.param_dtype), key)
        return new_train_state(*weights, self.optimizer())

    def optimizer(self):
        """Return the optimizer."""
        optim = defaults.optimizer()
        optim.update(dict(lr=1e-6, schedule="constant", warmup=0, adam_state_dtype=self.moments))
        return make_optimizer(optim, 1, 1)

    def compile(self) -> None:
        """Compile the update from shapes."""
        algo = settings_from(algorithms.grpo(**dict(minibatches=1, tis_clip=0.0, loss_agg="token") | self.algo))
        update = make_update(self.policy, self.optimizer(), ALGORITHMS.get("grpo").objective, algo)
        jitted = jax.jit(update, donate_argnums=(0,), compiler_options=compiler_options())
        start = time.perf_counter()
        shapes = jax.eval_shape(self.make_train_state)
        self.compiled = jitted.lower(shapes, self.samples, jax.random.key(0)).compile()
        self.compile_s = time.perf_counter() - start

    def forecast(self) -> int:
        """Return the peak bytes of the compiled update."""
        memory = self.compiled.memory_analysis()
        held = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
        return held - memory.alias_size_in_bytes

    @property
    def state_kind(self) -> tuple:
        """Key of the train state: cases with the same key can share one."""
        return self.model, self.policy.lora, self.moments, self.param_dtype

    def run(self, train_state: TrainState, repeats: int) -> tuple[TrainState, dict]:
        """Measure the update and report it."""

        def one():
            nonlocal train_state
            train_state, metrics = self.compiled(train_state, self.samples, jax.random.key(0))
            jax.block_until_ready((train_state, metrics))

        one()
        seconds = median_seconds(one, repeats)
        tokens = int(jnp.sum(self.samples.context_len + self.samples.completion_lengths - 1))
        rate = 6 * self.policy.model.cfg.n_params * tokens / seconds if self.name in ("full", "large") else 0.0
        stats = jax.devices()[0].memory_stats() or {}
        row = dict(
            case=self.name, model=self.model, note=self.note, device=jax.devices()[0].device_kind, ms=seconds * 1e3,
            tokens=tokens, tokens_per_s=tokens / seconds, tflops=rate / 1e12, mfu=rate / FLOPS_PER_S,
            forecast_gib=self.forecast() / GIB, peak_gib=stats.get("peak_bytes_in_use", 0) / GIB,
            compile_s=self.compile_s,
        )  # fmt: skip
        report(**row)
        return train_state, row


def no_action(tokens: jax.Array, lengths: jax.Array, legal: jax.Array) -> jax.Array:
    """Return -1 for all completions, int32 [B]: they name no action."""
    return jnp.full(lengths.shape, -1, jnp.int32)


def make_policy(name: str, width: int, dtype, *, rank: int = 0, **changes) -> Policy:
    """Return a policy that generates any text of up to `width` tokens."""
    answers = FreeText(no_action, np.zeros((1, 1), np.int32), np.ones((1,), np.int32), stop_ids=(), max_new=width)
    spec = LoraSpec(1, rank, 2.0 * rank, lora.TARGETS) if rank else None
    return Policy(build(registry.get(name).config), answers, lora=spec, critic="none", dtype=dtype, **changes)


def make_samples(vocab: int, prompts, answers, skip: int = 0, prefix: tuple[int, ...] = ()) -> Samples:
    """Return rows of a prompt with S completions.

    Args:
        vocab: Size of the vocabulary.
        prompts: int [N], lengths of the prompts.
        answers: int [N, S], lengths of the completions.
        skip: Number of prefix tokens that the policy reads once and that are not in the rows.
        prefix: Tokens at the beginning of all prompts.
    """
    rng = np.random.default_rng(0)
    prompts, answers = np.asarray(prompts), np.asarray(answers)
    (n, size), width = answers.shape, int(answers.max())
    longest = int(prompts.max()) - skip
    time = row_length(longest, width if size == 1 else 1)
    tokens = rng.integers(0, vocab, (n, time), np.int32)
    tokens[:, : len(prefix) - skip] = prefix[skip:]
    tokens[np.arange(time) >= prompts[:, None] - skip] = 0
    mask = np.arange(width) < answers[..., None]
    samples = from_prompts(
        jnp.asarray(tokens), jnp.asarray(prompts - skip, jnp.int32),
        jnp.asarray(rng.integers(0, vocab, mask.shape, np.int32) * mask), jnp.asarray(answers, jnp.int32),
        jnp.asarray(-12.0 * mask, jnp.float32), skip=skip, rewards=jnp.zeros((n, size, 1)),
    )  # fmt: skip
    advantages = rng.standard_normal((n, size, 1)) * mask
    return samples.replace(advantages=jnp.asarray(advantages.reshape(n, -1), jnp.float32))


# ------------------------------------------------------------------------------------------------------------- cases


def whole_rows(name: str, dtype, rows: int, time: int, note: str, rank=0, remat="none", unroll=0, **settings) -> Case:
    """Return a case of rows in which all tokens are predicted."""
    policy = make_policy(name, time, dtype, rank=rank, remat=remat, unroll=unroll)
    samples = make_samples(policy.model.cfg.vocab_size, [1] * rows, [[time]] * rows)
    return Case(
        "large" if settings else "full",
        f"{note}{rows}×{time}, {layers(remat, unroll)}",
        name,
        policy,
        samples,
        **settings,
    )


def layers(remat: str, unroll: int) -> str:
    """Return the words for settings of the layers."""
    return f"remat {remat}" + (f", unroll {unroll}" if unroll else "")


def adapted(name: str, dtype, rows: int, longest: int, remat: str, unroll: int) -> Case:
    """Return a case of samples with which adapters are trained."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(longest * 4 // 7, longest + 1, rows)
    answers = rng.integers(longest // 6, longest * 320 // 700 + 1, rows)
    policy = make_policy(name, int(answers.max()), dtype, rank=32, remat=remat, unroll=unroll)
    samples = make_samples(policy.model.cfg.vocab_size, prompts, answers[:, None])
    settings = dict(param_dtype=dtype, algo=dict(grad_accum_steps=8))
    return Case("lora", f"{rows} samples, {layers(remat, unroll)}", name, policy, samples, **settings)


def seen(name: str, dtype, rows: int, time: int, rank: int = 0, **settings) -> Case:
    """Return a case of rows with a picture each and `time` predicted tokens."""
    picture = make_medium(make_game("plan_path", size=8))
    policy = make_policy(name, time, dtype, rank=rank, medium=picture)
    cfg = policy.model.cfg
    begin = pictured.beginning(cfg)
    samples = make_samples(cfg.vocab_size, [len(begin)] * rows, [[time]] * rows, prefix=tuple(begin))
    codes = np.random.default_rng(0).integers(0, len(picture.tiles), (rows, picture.n_codes))
    samples = samples.replace(media=jnp.asarray(codes, picture.dtype))
    note = f"{'LoRA' if rank else 'all weights'}, {rows} pictures and {rows}×{time}"
    return Case("pictures", note, name, policy, samples, **settings)


def shared(name: str, dtype, groups: int, prompt: int, answers: tuple[int, ...], grad_accum_steps: int) -> list[Case]:
    """Return cases with groups of 8 completions, reading each prompt 8 times or once."""
    cases = []
    for width in answers:
        for share in (1, 8):
            policy, rows = make_policy(name, width, dtype), groups * 8 // share
            samples = make_samples(policy.model.cfg.vocab_size, [prompt] * rows, [[width] * share] * rows)
            note = f"answers of {width}, prompts read {'once' if share > 1 else '8 times'}"
            cases.append(Case("share", note, name, policy, samples, algo=dict(grad_accum_steps=grad_accum_steps)))
    return cases


def uneven(name: str, dtype, rows: int, longest: int, grad_accum_steps: int) -> list[Case]:
    """Return cases with prompts and completions of uneven lengths, padded and packed."""
    rng = np.random.default_rng(0)
    prompts, answers = rng.integers(longest // 4, longest + 1, rows), rng.integers(longest // 16, longest + 1, rows)
    policy = make_policy(name, int(answers.max()), dtype)
    samples = make_samples(policy.model.cfg.vocab_size, prompts, answers[:, None])
    return [
        Case("pack", f"{'packed' if pack else 'padded'} rows", name, policy, samples,
             algo=dict(grad_accum_steps=grad_accum_steps, pack=pack))
        for pack in (0, 4)
    ]  # fmt: skip


def common_beginning(name: str, dtype, rows: int) -> list[Case]:
    """Return cases with a common prefix."""
    cases, prefix = [], tuple(range(1, 67))
    for rules in ((), prefix):
        policy = make_policy(name, 1, dtype, rules=rules)
        skip = len(policy.prefix)
        samples = make_samples(policy.model.cfg.vocab_size, [115] * rows, [[1]] * rows, skip, prefix)
        note = f"66 of 115 tokens read {'once' if skip else 'in every row'}"
        cases.append(Case("prefix", note, name, policy, samples))
    return cases


def make_cases(
    names: list[str], models: list[str], remats: list[str], unrolls: list[int], moments: str, gpu: bool
) -> list[Case]:
    """Return the cases with these names, small models first."""
    dtype = jnp.bfloat16 if jax.default_backend() != "cpu" else jnp.float32
    rows, time = (16, 512) if gpu else (2, 32)
    cases = []
    if "prefix" in names:
        cases += common_beginning("smollm2-135m" if gpu else models[0], dtype, 1024 if gpu else 16)
    layer_settings = list(itertools.product(remats, unrolls))
    whole = [
        whole_rows(model, dtype, rows, time, "", remat=remat, unroll=unroll)
        for model in models
        for remat, unroll in layer_settings
    ]
    if "full" in names:
        cases += whole[: len(layer_settings)]
    if "lora" in names:
        sizes = (128, 700) if gpu else (16, 28)
        cases += [adapted(model, dtype, *sizes, *settings) for model in models for settings in layer_settings]
    if "pack" in names:
        cases += uneven(models[0], dtype, 256 if gpu else 16, 256 if gpu else 16, 16 if gpu else 4)
    if "share" in names:
        cases += shared(models[0], dtype, 32 if gpu else 2, 256 if gpu else 16, (1, 16, 256) if gpu else (1, 4), 2)
    if "full" in names:
        cases += whole[len(layer_settings) :]
    if "pictures" in names:
        model = "qwen2.5-vl-3b" if gpu else "tiny-vl"
        cases += [seen(model, dtype, rows, time), seen(model, dtype, rows, time, rank=32, param_dtype=dtype)]
    if "large" in names:
        model, base = ("qwen2.5-7b", dict(param_dtype=jnp.bfloat16)) if gpu else (models[0], dict(moments="bfloat16"))
        cases.append(whole_rows(model, dtype, rows, time, "LoRA, ", rank=32, **base))
        note = f"all weights, {moments} moments, "
        cases.append(whole_rows(model, dtype, rows, time, note, remat="full", moments=moments))
    return cases


def table(rows: list[dict]) -> str:
    """Return the results as Markdown."""
    lines = ["| model | case | ms | tokens/s | MFU | forecast GiB | peak GiB |", "| --- " * 7 + "|"]
    for r in rows:
        mfu = f"{r['mfu']:.1%}" if r["mfu"] else "–"
        lines.append(
            f"| {r['model']} | {r['case']}: {r['note']} | {r['ms']:.1f} | {r['tokens_per_s']:,.0f} | {mfu} | "
            f"{r['forecast_gib']:.1f} | {r['peak_gib']:.1f} |"
        )
    return "\n".join(lines)


def main():
    """Run the cases and print JSON lines and a table."""
    gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="prefix,full,pack,share,large")
    parser.add_argument("--models", default="qwen2.5-0.5b,qwen2.5-1.5b" if gpu else "tiny")
    parser.add_argument("--remat", default="none")
    parser.add_argument("--unroll", default="0", help="Values of model.unroll, separated by commas")
    parser.add_argument(
        "--moments", default="bfloat16", help="Dtype of the moments if all weights of the largest model are trained"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=8 if gpu else 1, help="Number of cases to compile concurrently")
    args = parser.parse_args()
    unrolls = [int(value) for value in args.unroll.split(",")]
    cases = make_cases(args.cases.split(","), args.models.split(","), args.remat.split(","), unrolls, args.moments, gpu)
    with ThreadPoolExecutor(args.threads) as threads:
        futures = [threads.submit(case.compile) for case in cases]
    rows, kind = [], None
    for case, future in zip(cases, futures, strict=True):
        try:
            future.result()
            if case.state_kind != kind:
                train_state = None  # frees the old one first
                train_state, kind = jax.jit(case.make_train_state)(), case.state_kind
            train_state, row = case.run(train_state, args.repeats)
            rows.append(row)
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
            # Out of memory, or a shape that a kernel does not support: continue with the other cases.
            report(case=case.name, model=case.model, note=case.note, error=str(error).splitlines()[0])
            kind = None  # its buffers may have been donated
        case.compiled = None
    print(table(rows))


if __name__ == "__main__":
    main()
