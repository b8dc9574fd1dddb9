"""What the tests of serving share: an endpoint over a sampler without a model, in this event loop or in a thread."""

import asyncio
import contextlib
import functools
import http.client
import json
import time
from urllib.parse import urlsplit

import numpy as np

from marl_jax.rollouts.host.conversation import Speaker, derive_seed
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from tests.marl_jax.tiny_host import MAX_LENGTH, merging_tokenizer


class Parrot:
    """Answers by a function of prompt ids and seed, by default letters at random; streams them one token at a time.

    script     from the decoded prompt to the text of the answer, or None
    under_way  requests that are being answered
    """

    letters = [97, 98, 256, 32, 200, 10]  # a, b, ab, space, half of a character, newline

    def __init__(self, script=None, delay=0.0, tokenizer=None):
        self.tokenizer, self.script, self.delay = tokenizer or merging_tokenizer(), script, delay
        self.asked, self.under_way, self.cancelled = [], 0, 0

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None, on_tokens=None):
        self.asked.append((list(ids), sampling))
        self.under_way += 1
        try:
            answers = [self._one(list(ids), sampling, policy, k) for k in range(n)]
            for t in range(max(len(a.tokens) for a in answers) - 1):
                await asyncio.sleep(self.delay)
                for k, a in enumerate(answers):
                    if on_tokens is not None and t < len(a.tokens) - 1:
                        on_tokens(
                            k, Completion(a.tokens[t : t + 1], a.logps[t : t + 1], "going", a.versions[t : t + 1])
                        )
            return answers
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1

    def _one(self, ids, sampling, policy, k):
        rng = np.random.default_rng(derive_seed(ids, sampling.seed, policy, k))
        if self.script is not None:
            tokens = self.tokenizer.encode(self.script(self.tokenizer.decode(ids)))
        else:
            tokens = rng.choice(self.letters, int(rng.integers(1, 9))).tolist()
        for n in range(len(tokens) + 1):
            if any(stop in self.tokenizer.decode(tokens[:n]) for stop in sampling.stop_strings):
                tokens = tokens[:n]
                break
        else:
            tokens = [*tokens, self.tokenizer.stop_ids[0]]
        finish = "stop" if len(tokens) <= sampling.max_new_tokens else "length"
        tokens = np.asarray(tokens[: sampling.max_new_tokens], np.int32)
        logps = -rng.random(len(tokens)).astype(np.float32)
        return Completion(tokens, logps, finish, np.zeros(len(tokens), np.int32))


def served(sampler, names=("one", "two"), tokenizer=None, **options):
    """Models of these names, all answered by one sampler."""
    tokenizer = tokenizer or sampler.tokenizer
    return {
        name: ServedModel.of(name, Speaker(
            sampler, tokenizer, Sampling(max_new_tokens=128), MAX_LENGTH, policy=i, number=i, options=options
        ))
        for i, name in enumerate(names)
    }  # fmt: skip


@contextlib.contextmanager
def endpoint(sampler, names=("one", "two"), **settings):
    """(address, endpoint) of a server in a thread."""
    found = Endpoint(served(sampler, names), **settings)
    with in_thread(found.application()) as url:
        yield url, found


def post(url, path, body, key="", headers=(), raw=False):
    """(status, JSON value) of a request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    head = {"Content-Type": "application/json", **dict(headers)}
    if key:
        head["Authorization"] = f"Bearer {key}"
    method = "GET" if body is None else "POST"
    connection.request(method, path, body if raw or body is None else json.dumps(body), head)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def read_until(connection, words):
    """Reads from a socket until these bytes have come; the head of an answer may come alone."""
    found = b""
    while words not in found:
        new = connection.recv(4096)
        assert new, found
        found += new


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@functools.cache
def client_class():
    """The OpenAI SDK's client, which is no requirement of the project."""
    import pytest

    return pytest.importorskip("openai", reason="openai is not installed (pip install -e .[test])").OpenAI


def client(url, key="sk-none-needed", **settings):
    """A client without retries."""
    return client_class()(base_url=f"{url}/v1", api_key=key, **{"max_retries": 0, **settings})
