"""What the tests of host rollouts share: a sampler without a model, a tokenizer that merges, a plain reader of rows."""

import asyncio
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs.tasks.task import Outcome
from marl_jax.agents.answers import FreeText
from marl_jax.agents.policy import Policy
from marl_jax.rollouts.host.conversation import Speaker, derive_seed
from marl_jax.rollouts.host.episodes import EpisodeRunner
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.sampling.settings import Sampling
from models.chat_templates import BUILTIN
from models.config import ModelConfig
from models.model import build as build_model
from models.tokenizers.bpe import CONTROL, NORMAL, byte_characters, byte_level_bpe
from models.tokenizers.tokenizer import build

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|eos|>")


@functools.cache
def merging_tokenizer():
    """Bytes and the token "ab": the sampled ids a, b are the text that encodes to the one id ab."""
    tokens = [*byte_characters(), "ab", *SPECIAL]
    types = [NORMAL] * 257 + [CONTROL] * len(SPECIAL)
    rust = byte_level_bpe(tokens, types, merges=[("a", "b")], pre="whole")
    ids = {token: 257 + i for i, token in enumerate(SPECIAL)}
    return build("merging", rust, BUILTIN["chatml"], eos_id=ids["<|eos|>"], pad_id=ids["<|pad|>"])


MAX_LENGTH = 512
CONFIG = ModelConfig(
    "qwen2", vocab_size=264, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48,
    max_positions=MAX_LENGTH, qkv_bias=True,
)  # fmt: skip


@functools.cache
def free_policy(temperature=1.0):
    """A policy that answers with free text, for learning."""
    names = np.zeros((1, 1), np.int32), np.ones((1,), np.int32)
    answers = FreeText(None, *names, stop_ids=merging_tokenizer().stop_ids, max_new=8)
    return Policy(build_model(CONFIG), answers, critic="none", dtype=jnp.float32, temperature=temperature)


@dataclasses.dataclass(frozen=True)
class FakeAnswer:
    tokens: np.ndarray
    logps: np.ndarray
    finish: str
    versions: np.ndarray


class FakeSampler:
    """Answers that are a function of ids, seed, version and k; `order` decides who is answered first.

    asked  (ids, sampling, answers) of every request, by seed
    """

    letters = [97, 98, 256, 32, 200, 10]  # a, b, ab, space, half of a character, newline

    def __init__(self, order=None, tokenizer=None):
        self.tokenizer = tokenizer or merging_tokenizer()
        self.order, self.asked, self.requests, self.version = order, {}, 0, 0

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None):
        self.requests += 1
        for _ in range(0 if self.order is None else int(self.order.integers(0, 20))):
            await asyncio.sleep(0)
        answers = [self._one(list(ids), sampling, policy, k) for k in range(n)]
        assert sampling.seed not in self.asked, "a seed was used twice"
        self.asked[sampling.seed] = list(ids), sampling, answers
        return answers

    def set_weights(self, policy, weights, version):
        self.version = version

    def _one(self, ids, sampling, policy, k):
        rng = np.random.default_rng(derive_seed(ids, sampling.seed, policy, k))
        length = int(rng.integers(1, 9))
        tokens = rng.choice(self.letters, length).tolist()
        if length < sampling.max_new_tokens:
            tokens, finish = [*tokens, int(rng.choice(self.tokenizer.stop_ids))], "stop"
        else:
            tokens, finish = tokens[: sampling.max_new_tokens], "length"
        logps = -rng.random(len(tokens)).astype(np.float32)
        return FakeAnswer(np.asarray(tokens, np.int32), logps, finish, np.full(len(tokens), self.version, np.int32))


@dataclasses.dataclass(frozen=True)
class Talk:
    """A task from a function `async (ask, example) -> Outcome`."""

    function: object
    roles: tuple[str, ...] = ("one", "two")
    n: int = 7

    def examples(self, part):
        return [f"{part} {i} ab" for i in range(self.n)]

    def play(self, ask, example):
        return self.function(ask, example)


async def conversation(ask, example):
    """Both seats speak at once, twice, the second time about the other's answer; then the first one alone."""
    chats = [ask.chat(0, system="abba"), ask.chat(1)]
    texts = [example, f"{example}, too"]
    for turn in range(2):
        replies = await asyncio.gather(*(c.say(t) for c, t in zip(chats, texts, strict=True)))
        texts = [f"he said {r.text}" for r in reversed(replies)]
        for seat, reply in enumerate(replies):
            reply.reward(team=turn, agent=seat + 1, process=len(reply.text) / 100)
    last = await chats[0].say("the end?")
    last.reward(team=5)
    return Outcome(True, {"length": len(last.text)})


async def tree(ask, example):
    """A task with candidates at every turn, one kept at random, and a fork with a separate answer."""
    chat = ask.chat(0, system="S")
    for turn in range(2):
        reply = await chat.say(f"{example} {turn}", n=ask.candidates)
        for k, candidate in enumerate(reply.replies):
            candidate.reward(agent=10 * turn + k)
        chat.keep(ask.random.randrange(ask.candidates))
    fork = chat.fork()
    one, two = await asyncio.gather(chat.say("left"), fork.say("right"))
    one.reward(process=one.text.count("a"))
    checker = ask.chat(1)
    await checker.say(two.text, n=ask.candidates)
    return Outcome(0.5)


def make_rollout(task, sampler=None, *, n_examples=3, samples=2, candidates=1, max_length=4000, budget=8, **kwargs):
    runner_names = (
        "seed", "time_limit", "compile_seconds", "block_limit", "concurrency", "workers", "seating", "server"
    )  # fmt: skip
    runner = {name: kwargs.pop(name) for name in runner_names if name in kwargs}
    sampler = sampler or FakeSampler()
    speakers = kwargs.pop("speakers", None) or [
        Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=budget), max_length)
    ]
    task = task if hasattr(task, "roles") else Talk(task)
    return HostRollout(
        EpisodeRunner(task, speakers, candidates=candidates, **runner), n_examples=n_examples, samples=samples, **kwargs
    )


def visible(samples, n, i):
    """The tokens that token i of row n sees, itself included, by position: the rule, spelled out."""
    branch = np.full(samples.tokens.shape, -1) if samples.branch is None else samples.branch
    seen = []
    for j in range(int(samples.lengths[n])):
        if samples.positions[n, j] > samples.positions[n, i]:
            continue
        if branch[n, j] == -1:
            ok = branch[n, i] == -1 or samples.positions[n, j] < samples.context_len[n, branch[n, i]]
        else:
            ok = branch[n, j] == branch[n, i]
        if ok:
            seen.append(j)
    return [int(samples.tokens[n, j]) for j in sorted(seen, key=lambda j: samples.positions[n, j])]


def answers_of(samples):
    """(row, answer, indices of its tokens among X) of every answer."""
    for n, s in np.argwhere(samples.completion_lengths > 0):
        yield int(n), int(s), np.flatnonzero(samples.completion_of[n] == s)


def assert_equal_samples(one, two, atol=0.0):
    paths = jax.tree_util.tree_flatten_with_path(one)[0]
    others, structure = jax.tree_util.tree_flatten(two)
    assert structure == jax.tree.structure(one)
    for (path, a), b in zip(paths, others, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(path))
