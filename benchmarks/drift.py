r"""A check that training uses exactly the sampled tokens when agent frameworks call over HTTP.

    python -m benchmarks.drift --frameworks=openai --turns=500
    python -m benchmarks.drift --frameworks=openai,autogen,langgraph,llamaindex,ag2 --turns=10000 \
        --python=autogen:ENVIRONMENT/bin/python --python=ag2:ENVIRONMENT/bin/python …

Sessions of unmodified clients (`benchmarks/drift_clients.py`: OpenAI's SDK, AutoGen, LangGraph, LlamaIndex, AG2), with
and without tools and streaming, use the chat templates of Qwen2.5, Qwen3, LLaMA 3 and SmolLM2. In each session several
agents take turns. A small random model generates the completions. Some completions are scripted, so that there are tool
calls and thoughts. The tokenizer merges letters that the model generates one by one, so tokenizing a text again would
give other ids.

Each framework has a JSON line:

turns          number of completions
tool_calls     number of completions with tool calls
drift          tokens of completions that are not in the samples exactly as sampled: after the same ids, with the same
               log-probs, once
extra          tokens of completions in the samples that were never sampled
retokenised    turns with a prompt that would have had other ids if its text had been tokenized again
rendered       turns with a prompt that differs from the conversation rendered by the template. Spaces, thoughts and
               control tokens in completions are ignored, and so are LLaMA 3's tool calls, which the model and the
               template write differently
merged         calls that continue a conversation, as a fraction of those that an ideal merge would continue
logp_diff      largest difference between the learner's log-probs and the recorded ones

The exit status is 1 if anything drifted or was rendered differently, or if less than 0.95 was merged.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import random
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sampler import report
from envs.tasks.program import process
from envs.tasks.program.task import environment
from marl_jax.agents import scoring
from marl_jax.agents.answers import FreeText
from marl_jax.agents.policy import Policy
from marl_jax.rollouts.host.collate import collate, sizes_for
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import Episode, Job
from marl_jax.samples import Samples
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.server import in_loop
from marl_jax.serving.openai.calls import Call, ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.sessions import Session
from models.chat_templates import BUILTIN
from models.config import ModelConfig
from models.model import Model, build
from models.tokenizers import Tokenizer
from models.tokenizers.bpe import CONTROL, NORMAL, byte_characters, byte_level_bpe
from models.tokenizers.tokenizer import build as build_tokenizer
from models.tool_calls import Llama3

CLIENTS = Path(__file__).with_name("drift_clients.py")
TEMPLATES = ("qwen2.5", "qwen3", "llama3", "smollm2")
SPECIAL = (
    "<|pad|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
MERGES = ("ab", "th", "in", "an", "er", "is", "to", "ol", "al", "us", "so", "me", "st", "nd", "ag", "en", "42")
MAX_LENGTH, MAX_NEW, AGENTS, SESSION_TURNS = 8192, 12, 4, 105
LEAST_MERGED, LARGEST_DIFF = 0.95, 1e-4


@functools.cache
def tokenizer_of(template: str) -> Tokenizer:
    """Return a tokenizer with the chat template `template`.

    Its tokens are bytes, some pairs of letters, and the control tokens of all templates.
    """
    tokens = [*byte_characters(), *MERGES, *SPECIAL]
    types = [NORMAL] * (256 + len(MERGES)) + [CONTROL] * len(SPECIAL)
    rust = byte_level_bpe(tokens, types, merges=[tuple(pair) for pair in MERGES], pre="whole")
    ids = {token: 256 + len(MERGES) + i for i, token in enumerate(SPECIAL)}
    return build_tokenizer("pairs", rust, BUILTIN[template], eos_id=ids["<|eos|>"], pad_id=ids["<|pad|>"])


CONFIG = ModelConfig(
    "qwen2", vocab_size=256 + len(MERGES) + len(SPECIAL), d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8,
    d_ff=48, max_positions=MAX_LENGTH, qkv_bias=True,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ sampling


Given = tuple[bytes, tuple[int, ...], tuple[float, ...]]
"""A completion: a digest of the ids before it, its tokens and their log-probs."""


def given_of(ids: Sequence[int], tokens: Sequence[int], logps: Sequence[float]) -> Given:
    """Return a completion in the form in which completions are compared."""
    return hashlib.sha256(np.asarray(ids, np.int32).tobytes()).digest(), tuple(tokens), tuple(logps)


class Recorder:
    """A sampler that records every completion and scripts some of them.

    Scripted completions have one token per letter.

    Args:
        sampler: Sampler of the model. None: all completions are scripted.
        share: Fraction of scripted completions.

    Attributes:
        given: All completions.
        real: Completions of the model.
    """

    def __init__(self, sampler: BatcherThread | None = None, share: float = 0.4):
        self.sampler, self.share = sampler, share
        self.given: list[Given] = []
        self.real: set[Given] = set()

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None, on_tokens=None) -> list[Completion]:
        """Sample completions. See `BatcherThread.answer`."""
        rng = random.Random(sampling.seed)
        real = self.sampler is not None and rng.random() >= self.share
        if real:
            answers = await self.sampler.answer(ids, sampling, policy=policy, n=n, on_tokens=on_tokens)
        else:
            answers = [self._scripted(ids, rng) for _ in range(n)]
            for k, one in enumerate(answers if on_tokens is not None else ()):
                for t in range(len(one.tokens) - 1):
                    piece = slice(t, t + 1)
                    on_tokens(k, Completion(one.tokens[piece], one.logps[piece], "going", one.versions[piece]))
                    await asyncio.sleep(0)
        given = [given_of(ids, a.tokens.tolist(), a.logps.tolist()) for a in answers]
        self.given += given
        self.real.update(given if real else ())
        return answers

    @staticmethod
    def _scripted(ids, rng: random.Random) -> Completion:
        """Return a scripted completion."""
        tokenizer = tokenizer_of(TEMPLATES[0])
        prompt = tokenizer.decode(list(ids))
        call = f'{{"name":  "add", "arguments": {{"b": {rng.randint(0, 9)}, "a":1}}}}'
        texts = ["so it is 42", " the answer\n", "abba", "", "<think>\nhm, ab\n</think>\n\nin the end: 42", "naïve 漢"]
        if '"name": "add"' in prompt:
            hermes = [f"Let me see.\n<tool_call>{call}</tool_call>", f"<tool_call>\n{call}\n</tool_call>"]
            texts += [call.replace("arguments", "parameters")] * 2 if "<|start_header_id|>" in prompt else hermes
        text = rng.choice(texts)
        tokens = [token for letter in text for token in tokenizer.encode(letter)] + [tokenizer.stop_ids[0]]
        logps = [-rng.random() for _ in tokens]
        versions = np.zeros(len(tokens), np.int32)
        return Completion(np.asarray(tokens, np.int32), np.asarray(logps, np.float32), "stop", versions)


def served(name: str, recorder: Recorder) -> dict[str, ServedModel]:
    """Return a model NAME/TEMPLATE for each template."""
    sampling = Sampling(max_new_tokens=MAX_NEW)
    speakers = {t: Speaker(recorder, tokenizer_of(t), sampling, MAX_LENGTH) for t in TEMPLATES}
    return {f"{name}/{t}": ServedModel.of(f"{name}/{t}", speaker) for t, speaker in speakers.items()}


# ------------------------------------------------------------------------------------------------------------ checking


def samples_of(session: Session) -> Samples:
    """Return the samples that the learner gets from a session."""
    chats = sorted(session.conversations(), key=lambda chat: (chat.seat, chat.path))
    episode = Episode(Job(0, 0, 0, None), chats)
    return collate([episode], sizes_for([episode], token_unit=1024), n_seats=len(session.models))


def answers_in(samples: Samples) -> Iterable[Given]:
    """Yield every completion in samples without branches, row by row."""
    for n, s in np.argwhere(samples.completion_lengths > 0):
        at = np.flatnonzero(samples.completion_of[n] == s)
        logits_index, start = samples.logits_index[n, at], samples.context_len[n, s]
        row = samples.tokens[n].tolist()
        # Each token is predicted at the previous one, and the tokens in the row are those that were sampled.
        read = tuple(row[start : logits_index[-1] + 1])
        tokens = tuple(samples.targets[n, at].tolist())
        assert logits_index[0] == start - 1 and read == tokens[:-1], "a completion is not read where it was generated"
        yield given_of(row[:start], tokens, samples.logps[n, at].tolist())


def drift(given: Iterable[Given], trained: Iterable[Given]) -> tuple[int, int]:
    """Return the number of lost and of extra tokens.

    Lost tokens belong to completions that were sampled but are not among the samples, and extra tokens to the converse.
    """
    sampled, kept = collections.Counter(given), collections.Counter(trained)
    return tuple(sum(len(one[1]) * n for one, n in some.items()) for some in (sampled - kept, kept - sampled))


def retokenised(call: Call) -> bool:
    """Return whether tokenizing the prompt of a call again would give other ids."""
    tokenizer = call.model.speaker.tokenizer
    return tokenizer.encode(tokenizer.decode(call.ids)) != call.ids


def rendered(call: Call) -> bool:
    """Return whether a prompt equals the rendered conversation, except for spaces and thoughts."""
    renderer = call.model.renderer
    if isinstance(renderer.parser, Llama3) and any("tool_calls" in message for message in call.asked.messages):
        return True
    whole = renderer.tokenizer.decode(renderer.opening(call.asked.messages, call.asked.tools, call.asked.template))
    return _plain(renderer.tokenizer.decode(_without_control(call))) == _plain(whole)


def _without_control(call: Call) -> list[int]:
    """Return the ids of a prompt without control tokens that the model generated."""
    ids, first = list(call.ids), 256 + len(MERGES)
    while call.after is not None:
        call, k = call.after
        start, content = len(call.ids), call.contents[k]
        ids[start : start + len(content)] = [token for token in content if token < first]
    return ids


def _plain(text: str) -> str:
    """Return a text without spaces and thoughts.

    Bytes that are not a character are decoded separately or together, depending on their context, so runs are merged.
    """
    return re.sub("\ufffd+", "\ufffd", "".join(re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).split()))


@dataclasses.dataclass
class Count:
    """The results of the sessions of a framework; the module docstring explains the figures."""

    recorder: Recorder
    trained: list[Given] = dataclasses.field(default_factory=list)
    tool_calls: int = 0
    retokenised: int = 0
    rendered: int = 0
    continued: int = 0
    ideal: int = 0
    logp_diff: float = 0.0
    forks: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def add(self, session: Session, conversations: int) -> Samples:
        """Count a session; an ideal merge would produce `conversations` conversations."""
        samples = samples_of(session)
        self.trained += answers_in(samples)
        calls = [call for call in session.calls.values() if call.answers is not None]
        self.tool_calls += sum(bool(choice.calls) for call in calls for choice in call.choices)
        self.retokenised += sum(map(retokenised, calls))
        self.rendered += sum(not rendered(call) for call in calls)
        self.continued += len(calls) - len(session.conversations())
        self.ideal += len(calls) - conversations
        self.forks.update(session.forks)
        return samples

    @property
    def drift(self) -> tuple[int, int]:
        """Numbers of lost and of extra tokens."""
        return drift(self.recorder.given, self.trained)

    @property
    def merged(self) -> float:
        """Fraction of the ideal merge."""
        return self.continued / max(self.ideal, 1)

    @property
    def fine(self) -> bool:
        """Whether all checks pass."""
        exact = self.drift == (0, 0) and not self.rendered
        return exact and self.merged >= LEAST_MERGED and self.logp_diff <= LARGEST_DIFF

    def report(self, name: str) -> None:
        """Print a JSON line."""
        lost, extra = self.drift
        report(framework=name, turns=len(self.trained), tool_calls=self.tool_calls, drift=lost, extra=extra,
               retokenised=self.retokenised, rendered=self.rendered, merged=self.merged, logp_diff=self.logp_diff,
               forks={k: n for k, n in self.forks.items() if n})  # fmt: skip


def random_params(model: Model) -> dict:
    """Return weights that are large enough for probabilities to differ.

    Norms are around one, and all other weights around zero.
    """
    rng = np.random.default_rng(0)

    def one(path, leaf):
        center = 1.0 if path[-1].key.endswith("norm") else 0.0
        return jnp.asarray(center + 0.15 * rng.standard_normal(leaf.shape), jnp.float32)

    return jax.tree.map_with_path(one, model.abstract())


class Learner:
    """The learner's log-probs of samples, with the weights of the sampler."""

    def __init__(self, params: dict):
        names = np.zeros((1, 1), np.int32), np.ones((1,), np.int32)
        answers = FreeText(None, *names, stop_ids=tokenizer_of(TEMPLATES[0]).stop_ids, max_new=MAX_NEW)
        policy = Policy(build(CONFIG), answers, critic="none", dtype=jnp.float32, temperature=1.0)
        self._params, self._score = {"model": params}, jax.jit(functools.partial(scoring.score, policy))

    def diff(self, samples: Samples, real: set[Given]) -> float:
        """Return the largest difference from the recorded log-probs of the model."""
        scores = np.asarray(self._score(self._params, jax.tree.map(jnp.asarray, samples)).logps)
        worst, places = 0.0, np.argwhere(samples.completion_lengths > 0)
        for (n, s), one in zip(places, answers_in(samples), strict=True):
            if one in real:
                worst = max(worst, float(np.abs(scores[n, samples.completion_of[n] == s] - one[2]).max()))
        return worst


# ------------------------------------------------------------------------------------------------------------- running


async def run(args, sampler: BatcherThread, learner: Learner) -> dict[str, Count]:
    """Run all sessions, a few processes at a time, and return the results by framework."""
    frameworks = args.frameworks.split(",")
    counts = {name: Count(Recorder(sampler)) for name in frameworks}
    models = [served(name, count.recorder) for name, count in counts.items()]
    endpoint = Endpoint(dict(collections.ChainMap(*models)))
    places = asyncio.Semaphore(args.processes)
    cases = list(itertools.product(frameworks, TEMPLATES, (False, True), (False, True)))
    per_case = -(-args.turns // (len(cases) * SESSION_TURNS))
    pythons = dict(one.split(":", 1) for one in args.python)

    async def one(framework: str, template: str, tools: bool, stream: bool, seed: int) -> None:
        """Run one session and count it."""
        async with places:
            model = f"{framework}/{template}"
            session = await endpoint.sessions.open(seed=seed, models=[model], policy_sampling=True)
            settings = dict(framework=framework, model=model, agents=AGENTS, tools=tools, stream=stream,
                            turns=-(-args.turns // (len(cases) * per_case)), seed=seed)  # fmt: skip
            ended = await process.run(
                [pythons.get(framework, sys.executable), str(CLIENTS)], json.dumps(settings).encode() + b"\n",
                environment(f"{url}/v1", session.key, model),
            )  # fmt: skip
            await endpoint.sessions.end(session)
            if ended.code:
                raise SystemExit(f"{settings} failed: {ended.errors[-2000:]}")
        count = counts[framework]
        samples = count.add(session, json.loads(ended.output.splitlines()[-1])["conversations"])
        endpoint.sessions.discard(session)
        count.logp_diff = max(count.logp_diff, await asyncio.to_thread(learner.diff, samples, count.recorder.real))
        print(f"{model} tools={tools} stream={stream}: {len(count.trained)} so far", file=sys.stderr, flush=True)

    async with in_loop(endpoint.application()) as url:
        await asyncio.gather(*(
            one(*case, seed=1000 * i + k) for i, case in enumerate(cases) for k in range(per_case)
        ))  # fmt: skip
    return counts


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--frameworks", default="openai")
    parser.add_argument(
        "--python", action="append", default=[], help="FRAMEWORK:INTERPRETER, if it differs from this one"
    )
    parser.add_argument("--processes", type=int, default=4)
    args = parser.parse_args()
    model = build(CONFIG)
    params = random_params(model)
    engine = Engine(model, params, dtype=jnp.float32)
    batcher = Batcher(engine, rows=8, max_length=MAX_LENGTH, tokenizer=tokenizer_of(TEMPLATES[0]))
    with BatcherThread(batcher) as sampler:
        counts = asyncio.run(run(args, sampler, Learner(params)))
    for name, count in counts.items():
        count.report(name)
    sys.exit(not all(count.fine for count in counts.values()))


if __name__ == "__main__":
    main()
