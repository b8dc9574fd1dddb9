r"""A check that tool conversations are trained on as sampled, and results never.

    python -m benchmarks.tool_drift --tokenizer=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf     # 1,000 conversations
    python -m benchmarks.tool_drift --weights=SmolLM2-135M-Instruct.gguf --conversations=16 --batch=8 --new=64

Rollouts of the task `tools` (one agent with a calculator and a table) with the batcher. Without weights, a small random
model with the tokenizer and chat template of a model generates half of the completions. The others are scripted calls
and answers, right and wrong ones, in half of the cases with one token per letter, so that tokenizing them again would
give other ids. With weights, all completions are those of the model.

The JSON line has:

conversations  number of conversations, how many of them read a tool result, and failed ones
completions    number of completions, of tool calls in them, and of completions of the model
drift, extra   see `benchmarks.drift`
retokenised    completions whose prompt would have had other ids if its text had been tokenized again
result_tokens  tokens of tool messages in the samples, and how many of them have a loss
logp_diff      largest difference between the learner's log-probs and the sampler's, in the first eight conversations of
               each rollout

The exit status is 1 if a conversation failed, anything drifted, a token of a result has a loss, or the log-probs differ
by more than 1e-3.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import drift
from benchmarks.sampler import report
from envs.tasks import make_task
from envs.tasks.tools.limits import KINDS
from marl_jax.agents import scoring
from marl_jax.agents.answers import FreeText
from marl_jax.agents.policy import Policy
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import EpisodeRunner
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.samples import Samples
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from models import tokenizers
from models.model import build
from models.tokenizers import Tokenizer
from models.weights.load import load

LARGEST_DIFF, SCORED = 1e-3, 8
CALLS = (
    {"name": "calculator", "arguments": {"expression": "137 * 24"}},
    {"name": "calculator", "arguments": {"expression": "1 / 0"}},
    {"name": "calculator", "arguments": {"expression": 3}},
    {"name": "lookup", "arguments": {"query": "town"}},
    {"name": "lookup", "arguments": {"name": "naïve 漢字"}},
    {"name": "search", "arguments": {}},
)
TEXTS = ("so it is 42", "abba\n\n", "<answer>3288</answer>", "<think>\nhm\n</think>\n\n<answer>7</answer>", "")


class ToolRecorder(drift.Recorder):
    """A recorder whose scripted completions call the tools of the task."""

    def __init__(self, sampler: BatcherThread, tokenizer: Tokenizer, share: float):
        super().__init__(sampler, share)
        self.tokenizer = tokenizer
        self.retokenised = 0

    async def answer(self, ids, *args, **kwargs) -> list[Completion]:
        """Sample completions. See `BatcherThread.answer`."""
        self.retokenised += self.tokenizer.encode(self.tokenizer.decode(list(ids))) != list(ids)
        return await super().answer(ids, *args, **kwargs)

    def _scripted(self, ids, rng: random.Random) -> Completion:
        calls = [json.dumps(rng.choice(CALLS), ensure_ascii=rng.random() < 0.5) for _ in range(rng.choice((1, 1, 2)))]
        written = "\n".join(f"<tool_call>\n{call[: rng.choice((-3, 999, 999))]}\n</tool_call>" for call in calls)
        text = rng.choice((written, f"Let me see. {written}", written, rng.choice(TEXTS)))
        pieces = text if rng.random() < 0.5 else (text,)
        tokens = [token for piece in pieces for token in self.tokenizer.encode(piece)]
        tokens.append(rng.choice(self.tokenizer.stop_ids))
        logps = np.asarray([-rng.random() for _ in tokens], np.float32)
        return Completion(np.asarray(tokens, np.int32), logps, "stop", np.zeros(len(tokens), np.int32))


@dataclasses.dataclass
class Count:
    """The results; the module docstring explains the figures."""

    tokenizer: Tokenizer
    trained: list[drift.Given] = dataclasses.field(default_factory=list)
    conversations: int = 0
    failed: float = 0
    with_results: int = 0
    result_tokens: int = 0
    result_tokens_with_loss: int = 0
    calls: float = 0.0
    logp_diff: float = 0.0

    def add(self, samples: Samples, metrics: dict) -> None:
        """Count the samples of a rollout."""
        self.failed += metrics["episodes/failed"]
        self.trained += drift.answers_in(samples)
        finished = metrics["episodes/finished"]
        self.calls += finished * sum(metrics[f"task/{kind}_calls"] for kind in KINDS)
        for n in np.unique(np.argwhere(samples.completion_lengths > 0)[:, 0]):
            spans = result_spans(samples, int(n), self.tokenizer)
            losses = {int(i) + 1 for i in samples.logits_index[n][samples.completion_of[n] >= 0]}
            self.conversations += 1
            self.with_results += bool(spans)
            self.result_tokens += sum(map(len, spans))
            self.result_tokens_with_loss += sum(i in losses for span in spans for i in span)

    def score(self, samples: Samples, logps, real: set[drift.Given]) -> None:
        """Compare the learner's log-probs with those of the model's completions."""
        places = np.argwhere(samples.completion_lengths > 0)
        for (n, s), one in zip(places, drift.answers_in(samples), strict=True):
            if one in real:
                diff = np.abs(logps[n, samples.completion_of[n] == s] - np.asarray(one[2]))
                self.logp_diff = max(self.logp_diff, float(diff.max()))


def result_spans(samples: Samples, n: int, tokenizer: Tokenizer) -> list[range]:
    """Return the positions of the tool messages in a row.

    They are the tokens between completions that contain a result.
    """
    which = np.flatnonzero(samples.completion_lengths[n] > 0)
    starts = sorted((int(samples.context_len[n, s]), int(samples.completion_lengths[n, s])) for s in which)
    spans = [range(one + length, other) for (one, length), (other, _) in zip(starts, starts[1:], strict=False)]
    return [span for span in spans if "<tool_response>" in tokenizer.decode(samples.tokens[n, span].tolist())]


def main() -> None:
    """Run the check and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=50, help="conversations per rollout")
    parser.add_argument("--tokenizer", help="folder, GGUF file or model name of the tokenizer; default: the weights'")
    parser.add_argument("--weights", help="GGUF file or folder of a model; default: small random weights")
    parser.add_argument("--new", type=int, default=12, help="maximum number of tokens of the model's completions")
    parser.add_argument("--form", default="single", choices=("single", "roles"))
    args = parser.parse_args()
    if not (args.tokenizer or args.weights):
        parser.error("--tokenizer or --weights is needed")
    tokenizer = tokenizers.load(args.tokenizer or args.weights)
    if args.weights:
        cfg, params = load(args.weights, dtype=jnp.float32)
        model = build(cfg)
    else:
        model = build(dataclasses.replace(drift.CONFIG, vocab_size=tokenizer.vocab_size))
        params = drift.random_params(model)
    longest = 4096 if args.weights is None else 2048
    batcher = Batcher(Engine(model, params, dtype=jnp.float32), rows=8, max_length=longest, tokenizer=tokenizer)
    names = np.zeros((1, 1), np.int32), np.ones((1,), np.int32)
    answers = FreeText(None, *names, stop_ids=tokenizer.stop_ids, max_new=args.new)
    policy = Policy(model, answers, critic="none", dtype=jnp.float32, temperature=1.0)
    score = jax.jit(functools.partial(scoring.score, policy))
    count = Count(tokenizer)
    with BatcherThread(batcher) as sampler:
        recorder = ToolRecorder(sampler, tokenizer, 0.0 if args.weights else 0.5)
        speaker = Speaker(recorder, tokenizer, Sampling(max_new_tokens=args.new), longest)
        task = make_task("tools", form=args.form, result_tokens=64)
        rollout = HostRollout(EpisodeRunner(task, [speaker], time_limit=3600, block_limit=3600), n_examples=args.batch)
        state = rollout.init(None, None)
        try:
            for _ in range(-(-args.conversations // args.batch)):
                samples, state, metrics = rollout({}, state)
                count.add(samples, metrics)
                sys.stderr.write(f"{count.conversations} conversations\n")
                few = jax.tree.map(lambda x: np.asarray(x)[:SCORED], samples)
                count.score(few, np.asarray(score({"model": params}, few).logps), recorder.real)
        finally:
            rollout.close()
    lost, extra = drift.drift(recorder.given, count.trained)
    report(
        conversations=count.conversations, with_results=count.with_results, failed=count.failed,
        completions=len(count.trained), tool_calls=round(count.calls), of_the_model=len(recorder.real), drift=lost,
        extra=extra, retokenised=recorder.retokenised, result_tokens=count.result_tokens,
        result_tokens_with_loss=count.result_tokens_with_loss, logp_diff=count.logp_diff,
    )  # fmt: skip
    sys.exit(bool(count.failed or lost or extra or count.result_tokens_with_loss or count.logp_diff > LARGEST_DIFF))


if __name__ == "__main__":
    main()
