"""Throughput of host rollouts compared with the batcher alone, as a JSON line.

    python -m benchmarks.tasks                                  # 512 conversations, Qwen2.5-0.5B shape
    python -m benchmarks.tasks --model=tiny --episodes=8        # on a CPU

In each conversation, two agents generate completions concurrently, `--turns` times. From the second turn on, each reads
the other's last completion. Weights are random and stop tokens are removed, so every completion has `--new` tokens.
`raw` submits all requests of the rollout with the same prompts to the batcher at once. No rollout can be faster, since
it has to wait for completions before it knows the next prompts. `share` is the rollout's rate over that rate, and
`share_in_turns` compares with the same requests turn by turn, which is all that is known at each moment. Both count
generated tokens over wall time including prefill. The second of two runs is reported, after everything is compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time

import jax
import jax.numpy as jnp

from benchmarks.sampler import random_params, report
from envs.tasks.task import Outcome, Task
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import EpisodeRunner
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from models import registry
from models.model import build
from models.tokenizers import ByteTokenizer


@dataclasses.dataclass(frozen=True)
class TwoTalk(Task):
    """Two agents that speak concurrently, `turns` times, each reading the other's last words."""

    turns: int
    words: int
    n: int

    roles = ("ada", "ben")

    def examples(self, part: str) -> list[str]:
        """Return questions of equal length."""
        return [f"Question {i:06d}: " + "why " * (self.words // 4) for i in range(self.n)]

    async def play(self, ask, example: str) -> Outcome:
        """Run the conversation without rewards."""
        chats = [ask.chat(0, system="You are Ada."), ask.chat(1, system="You are Ben.")]
        texts = [example, example]
        for _ in range(self.turns):
            replies = await asyncio.gather(*(chat.say(text) for chat, text in zip(chats, texts, strict=True)))
            # Random completions have texts of any length, so quotes are padded or cut to the same length.
            quotes = [reply.text.encode("ascii", "replace").decode()[: self.words] for reply in reversed(replies)]
            texts = [f"The other said: {quote:{self.words}}" for quote in quotes]
        return Outcome(1.0)


class Recording:
    """A sampler that removes stop tokens from requests and records them."""

    def __init__(self, sampler: BatcherThread):
        self.sampler, self.requests = sampler, []

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None):
        """Sample completions. See `BatcherThread.answer`."""
        sampling = dataclasses.replace(sampling, stop_ids=())
        self.requests.append((list(ids), sampling))
        return await self.sampler.answer(ids, sampling, policy, n, deadline)


def raw_seconds(sampler: BatcherThread, batches) -> float:
    """Return the wall time of requests, one batch after the other."""
    start = time.perf_counter()
    for batch in batches:
        sampler.pause()  # all are queued before the first is admitted, as if agents spoke at once
        futures = [sampler.ask(ids, sampling) for ids, sampling in batch]
        sampler.resume()
        for future in futures:
            future.result()
    return time.perf_counter() - start


def by_turn(requests, turns: int):
    """Return the requests of each turn, ordered by the length of their prompts."""
    ordered = sorted(requests, key=lambda request: len(request[0]))
    size = len(ordered) // turns
    return [ordered[i * size : (i + 1) * size] for i in range(turns)]


def main():
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--new", type=int, help="Tokens per completion (default: 200, for tiny 24)")
    parser.add_argument("--words", type=int, help="Characters of questions and quotes (default: 128, for tiny 24)")
    parser.add_argument("--rows", type=int, help="Rows of the batcher (default: 512, on a CPU 16)")
    parser.add_argument("--chunk", type=int, default=16)
    args = parser.parse_args()
    cpu, tiny = jax.default_backend() == "cpu", args.model == "tiny"
    new, words = args.new or (24 if tiny else 200), args.words or (24 if tiny else 128)
    rows = args.rows or (16 if cpu else 512)
    dtype = jnp.float32 if cpu else jnp.bfloat16

    model, tokenizer = build(registry.get(args.model).config), ByteTokenizer()
    longest = args.turns * (new + words + 64) + 64
    engine = Engine(model, random_params(model, dtype), dtype=dtype)
    with BatcherThread(Batcher(engine, rows=rows, max_length=longest, chunk=args.chunk)) as sampler:
        recording = Recording(sampler)
        speaker = Speaker(recording, tokenizer, Sampling(max_new_tokens=new), longest)
        runner = EpisodeRunner(TwoTalk(args.turns, words, args.episodes), [speaker], time_limit=3600)
        rollout = HostRollout(runner, n_examples=args.episodes)
        for _ in range(2):
            recording.requests.clear()
            before, start = sampler.usage, time.perf_counter()
            samples, _, metrics = rollout({}, rollout.init(None, None))
            seconds = time.perf_counter() - start
            useful = (sampler.usage.generated - before.generated) / max(sampler.usage.slots - before.slots, 1)
            requests = list(recording.requests)
            raw = raw_seconds(sampler, [sorted(requests, key=lambda r: len(r[0]))])
            turns = raw_seconds(sampler, by_turn(requests, args.turns))
        tokens = int(samples.completion_lengths.sum())
        assert metrics["episodes/failed"] == 0 and tokens == args.episodes * 2 * args.turns * new, metrics
        rollout.close()
    report(
        case="tasks", model=args.model, device=jax.devices()[0].device_kind, episodes=args.episodes, rows=rows,
        requests=len(requests), answer_tokens=new, prompt_tokens=sum(len(ids) for ids, _ in requests) / len(requests),
        tokens_per_s=tokens / seconds, raw_tokens_per_s=tokens / raw, share=raw / seconds,
        share_in_turns=turns / seconds, useful_slots=useful, seconds=seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
