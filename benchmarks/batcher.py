"""Throughput, prefill and memory of the batcher on realistic requests, as JSON lines.

    python -m benchmarks.batcher --weights=qwen2.5-coder-1.5b.gguf --questions=gsm8k_test.jsonl.gz   # real questions
    python -m benchmarks.batcher --model=qwen2.5-1.5b                                                # random weights
    python -m benchmarks.batcher --model=tiny --questions-limit=8 --rows=8 --new=24                  # on a CPU

Cases, `--cases=start,greedy,samples,debate,orders`:

start    seconds from constructing the batcher to the first completion, and until every program is compiled or read from
         the compilation cache
greedy   one completion per question
samples  `--n` samples per question
debate   `--agents` agents answer each question, then revise their answers `--turns` - 1 times after reading those of
         the others. Conversations grow token by token, and each turn prints a line.
orders   `--requests` random requests in three orders and with three memory budgets, with and without fixed shapes: the
         fraction of completions that differ from those of the first run, and the largest difference of log-probs

`tokens_per_s` is generated tokens over wall time. `read` is the number of prefilled tokens, and `least` the minimum for
any batcher: every distinct prefix once, including generated tokens. `host_share` is the fraction of time in which the
host did not wait for the device, an upper bound on the time that the device waited for the host. `held_ratio` is slots
over tokens at the chunk that held the most; reusable contexts without an owner are not counted. With random weights,
questions have 60 to 160 tokens and completions 100 to `--new`, because no token ends them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sampler import random_params, report
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from models import registry, tokenizers
from models.model import build
from models.weights.load import load

ASK = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTION = "{}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
OTHERS = "These are the solutions of other agents:\n\n{}\n\nUse them to check your solution, and answer again."


class Real:
    """A model with its tokenizer, and questions from a file."""

    def __init__(self, args, dtype):
        self.tokenizer = tokenizers.load(args.weights)
        cfg, params = load(args.weights, dtype=dtype)
        self.engine = Engine(build(cfg), params, dtype=dtype)
        opened = gzip.open if args.questions.endswith(".gz") else open
        with opened(args.questions, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines][: args.questions_limit]
        self.questions = [self.encode(ASK.format(QUESTION.format(row["question"]))) for row in rows]
        self.sampling = Sampling(max_new_tokens=args.new, stop_ids=self.tokenizer.stop_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(self.tokenizer.encode(text))

    def settings(self, seed: int, temperature: float = 1.0) -> Sampling:
        """Return sampling settings."""
        return Sampling(temperature, self.sampling.max_new_tokens, self.sampling.stop_ids, seed)

    def reply(self, others: list[np.ndarray]) -> list[int]:
        """Return the ids of the next user message, which quotes the other agents."""
        texts = [self.tokenizer.decode([i for i in answer if i not in self.sampling.stop_ids]) for answer in others]
        return self.encode("\n" + ASK.format(OTHERS.format("\n\n".join(texts))))

    def end(self) -> list[int]:
        """Return the ids that end a truncated completion."""
        return self.encode("<|im_end|>")


class Random:
    """Random weights of a published shape, with questions and completions of typical lengths."""

    def __init__(self, args, dtype):
        model = build(registry.get(args.model).config)
        self.engine = Engine(model, random_params(model, dtype), dtype=dtype)
        self.rng, self.most = np.random.default_rng(0), args.new
        self.questions = [self._text(self.rng.integers(60, 160)) for _ in range(args.questions_limit)]

    def _text(self, n: int) -> list[int]:
        """Return n random ids."""
        return self.rng.integers(0, self.engine.model.cfg.vocab_size, n).tolist()

    def settings(self, seed: int, temperature: float = 1.0) -> Sampling:
        """Return sampling settings with a random maximum length."""
        rng = np.random.default_rng(seed)
        return Sampling(temperature, int(min(self.most, rng.integers(self.most // 3, self.most * 3 // 2))), (), seed)

    def reply(self, others: list[np.ndarray]) -> list[int]:
        """Return the ids of the next user message, which quotes the other agents."""
        return self._text(30) + [int(i) for answer in others for i in answer]

    def end(self) -> list[int]:
        """Return no ids: completions need no end token."""
        return []


def least_read(contexts: list[list[int]], known: list[list[int]]) -> int:
    """Return the number of tokens in distinct prefixes that are not yet known."""
    return _distinct(contexts + known) - _distinct(known)


def _distinct(contexts: list[list[int]]) -> int:
    """Return the number of nodes in the tree of all prefixes."""
    total, before = 0, []
    for context in sorted(contexts):
        same = next((i for i, (a, b) in enumerate(zip(context, before, strict=False)) if a != b),
                    min(len(context), len(before)))  # fmt: skip
        total += len(context) - same
        before = context
    return total


def run(batcher: Batcher, requests) -> tuple[list, dict]:
    """Serve all requests and return the completions of each, and the figures."""
    before, start, held = batcher.usage, time.perf_counter(), (0, 0)
    numbers = [batcher.submit(*request) for request in requests]
    answers = {}
    while batcher.busy:
        batcher.step()
        answers |= dict(batcher.results())
        memory = batcher.memory()
        held = max(held, (memory.slots, memory.tokens))
    seconds, usage = time.perf_counter() - start, batcher.usage
    figures = dict(
        answers=sum(map(len, answers.values())), seconds=seconds, tokens=usage.generated - before.generated,
        tokens_per_s=(usage.generated - before.generated) / seconds, read=usage.read - before.read,
        useful=(usage.generated - before.generated) / max(usage.slots - before.slots, 1),
        host_share=1 - (usage.device - before.device) / seconds,
        preempted=usage.preempted - before.preempted, held_tokens=held[1], held_ratio=held[0] / max(held[1], 1),
    )  # fmt: skip
    return [answers[n] for n in numbers], figures


def debate(batcher: Batcher, data, agents: int, turns: int, known: list[list[int]], out) -> None:
    """Run a debate turn by turn, each as one batch of requests.

    `known` are the contexts that were prefilled before.
    """
    chats = [[list(q) for _ in range(agents)] for q in data.questions]
    for turn in range(turns):
        flat = [chat for group in chats for chat in group]
        answers, figures = run(batcher, [(chat, data.settings(1000 * turn + i)) for i, chat in enumerate(flat)])
        out(case=f"debate turn {turn + 1}", prompt=float(np.mean([len(c) for c in flat])),
            least=least_read([c[:-1] for c in flat], known), **figures)  # fmt: skip
        known += [chat + answer[0].tokens.tolist()[:-1] for chat, answer in zip(flat, answers, strict=True)]
        for g, group in enumerate(chats):
            written = [answers[g * agents + a][0] for a in range(agents)]
            for a, chat in enumerate(group):
                chat += written[a].tokens.tolist() + (data.end() if written[a].finish == "length" else [])
                chat += data.reply([w.tokens for b, w in enumerate(written) if b != a])


def orders(engine: Engine, rows: int, count: int, out) -> None:
    """Serve the same requests in several orders and with less and less memory."""
    rng, vocab, length = np.random.default_rng(1), engine.model.cfg.vocab_size, 512
    stems = [rng.integers(0, vocab, rng.integers(8, 200)).tolist() for _ in range(max(count // 20, 1))]
    requests = []
    for i in range(count):
        prompt = stems[rng.integers(len(stems))] + rng.integers(0, vocab, rng.integers(1, 100)).tolist()
        requests.append((prompt, Sampling(float(rng.integers(0, 2)), int(rng.integers(1, 160)), (), i)))
    for fixed in (True, False):
        expected = None
        for order, budget in ((1, rows * length), (-1, rows * length // 4), (0, 4 * length)):
            number = {1: range(count), -1: range(count)[::-1], 0: rng.permutation(count).tolist()}[order]
            batcher = Batcher(engine, rows=rows, max_length=length, fixed_shapes=fixed, cache_tokens=budget)
            completions, figures = run(batcher, [requests[i] for i in number])
            answers = [None] * count
            for i, answer in zip(number, completions, strict=True):
                answers[i] = answer[0]
            expected = expected or answers
            same = [a.tokens.tolist() == b.tokens.tolist() for a, b in zip(answers, expected, strict=True)]
            gap = max(
                float(np.max(np.abs(a.logps - b.logps), initial=0.0))
                for a, b, equal in zip(answers, expected, same, strict=True) if equal
            )  # fmt: skip
            bits = all(a.logps.tobytes() == b.logps.tobytes() for a, b in zip(answers, expected, strict=True))
            out(case="orders", fixed_shapes=fixed, budget=budget, differ=1 - float(np.mean(same)), logp_gap=gap,
                bit_equal=bits, preempted=figures["preempted"], seconds=figures["seconds"])  # fmt: skip


def main():
    """Run the cases and print their JSON lines."""
    gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-1.5b" if gpu else "tiny", help="Shape for random weights")
    parser.add_argument("--weights", default="", help="GGUF file or folder of a model; needs --questions")
    parser.add_argument("--questions", default="", help="JSONL file with the field `question`")
    parser.add_argument("--questions-limit", type=int, default=400)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--max-length", type=int, default=2560)
    parser.add_argument("--new", type=int, default=300)
    parser.add_argument("--n", type=int, default=9)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000, help="Number of requests in the case orders")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--memory-frac", type=float, default=0.6)
    parser.add_argument("--fixed-shapes", action="store_true")
    parser.add_argument("--cases", default="start,greedy,samples,debate")
    parser.add_argument("--out", default="", help="File to append the lines to")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dtype = jnp.bfloat16 if gpu else jnp.float32
    data = (Real if args.weights else Random)(args, dtype)
    name = Path(args.weights).stem if args.weights else args.model

    def out(**figures):
        figures = dict(model=name, rows=args.rows, device=jax.devices()[0].device_kind, **figures)
        report(**figures)
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(figures, default=float) + "\n")

    cases, known = args.cases.split(","), []
    start = time.perf_counter()
    batcher = Batcher(
        data.engine, rows=args.rows, max_length=args.max_length, chunk=args.chunk, page_size=args.page_size,
        fixed_shapes=args.fixed_shapes, memory_frac=args.memory_frac,
    )  # fmt: skip
    batcher.compile()
    if "start" in cases:
        batcher.submit(data.questions[0], data.settings(0))
        batcher.run()
        seconds = time.perf_counter() - start
        batcher.wait_until_compiled()
        out(case="start", seconds=seconds, compiled_s=time.perf_counter() - start)
    batcher.wait_until_compiled()
    if "greedy" in cases:
        answers, figures = run(batcher, [(q, data.settings(i, 0.0)) for i, q in enumerate(data.questions)])
        out(case="greedy", least=least_read([q[:-1] for q in data.questions], known), **figures)
        known += [q[:-1] for q in data.questions]
        if args.weights:
            print(data.tokenizer.decode(answers[0][0].tokens.tolist()))
    if "samples" in cases:
        _, figures = run(batcher, [(q, data.settings(i), 0, args.n) for i, q in enumerate(data.questions)])
        out(case=f"{args.n} samples", least=least_read([q[:-1] for q in data.questions], known), **figures)
        known += [q[:-1] for q in data.questions]
    if "debate" in cases:
        debate(batcher, data, args.agents, args.turns, known, out)
    stats = jax.devices()[0].memory_stats() or {}
    slots = batcher.memory().total
    out(case="memory", cache_tokens=slots, peak_gib=stats.get("peak_bytes_in_use", 0) / 2**30)
    if "orders" in cases:
        del batcher
        orders(data.engine, min(args.rows, 256), args.requests, out)


if __name__ == "__main__":
    main()
