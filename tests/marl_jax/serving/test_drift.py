"""A small run of `benchmarks.drift` with OpenAI's client: nothing drifts, and the checks detect drift."""

import asyncio
import itertools
import threading

import numpy as np
import pytest

from benchmarks import drift, drift_clients
from marl_jax.sampling.conversation import Completion
from marl_jax.serving.http.server import in_loop
from marl_jax.serving.openai.endpoint import Endpoint

pytestmark = pytest.mark.nightly

pytest.importorskip("openai", reason="openai is not installed (pip install -e .[test])")

TURNS = 10


class Noise:
    """Sampler of arbitrary tokens, including control tokens and incomplete characters."""

    async def answer(self, ids, sampling, policy=0, n=1, on_tokens=None):
        rng = np.random.default_rng(sampling.seed)
        tokens = rng.integers(0, drift.CONFIG.vocab_size, drift.MAX_NEW).astype(np.int32)
        answer = Completion(
            tokens, -rng.random(len(tokens)).astype(np.float32), "length", np.zeros(len(tokens), np.int32)
        )
        if on_tokens is not None:
            on_tokens(0, answer)
        return [answer]


@pytest.fixture(scope="module")
def talked():
    """Return (counts, sessions) of conversations in every template, with and without tools and streams."""
    count, sessions = drift.Count(drift.Recorder(Noise())), []

    async def talk():
        endpoint = Endpoint(drift.served("openai", count.recorder))
        async with in_loop(endpoint.application()) as url:
            cases = itertools.product(drift.TEMPLATES, (False, True), (False, True))
            for seed, (template, tools, stream) in enumerate(cases):
                model = f"openai/{template}"
                session = await endpoint.sessions.open(seed=seed, models=[model], policy_sampling=True)
                conversations = await asyncio.to_thread(drift_clients.talk_openai, dict(
                    url=f"{url}/v1", key=session.key, model=model, agents=3, turns=TURNS, tools=tools, stream=stream,
                    seed=seed,
                ))  # fmt: skip
                count.add(session, conversations)
                sessions.append(session)

    asyncio.run(talk())
    return count, sessions


def test_what_is_trained_on_is_what_was_sampled(talked):
    count, sessions = talked
    assert len(count.trained) == len(sessions) * TURNS == len(count.recorder.given)
    assert count.drift == (0, 0), "answers are not in the samples exactly once, behind the ids that were read"
    assert count.rendered == 0, "a continued prompt reads other than its template"
    assert count.merged == 1.0 and not +count.forks, "agents that take turns are conversations of their own"
    assert count.tool_calls >= 5, "tools were hardly called, so little was tried"
    assert count.retokenised > len(count.trained) / 3, "the tokenizer would give the same ids, so nothing was tried"


def test_the_checks_notice_drift(talked):
    count, sessions = talked
    samples = drift.samples_of(sessions[0])
    row = int(np.argmax(samples.completion_lengths.sum(1)))
    changed = samples.tokens.copy()
    changed[row, 0] += 1  # read by all completions of the row
    found = list(drift.answers_in(samples.replace(tokens=changed)))
    lost, extra = drift.drift(drift.answers_in(samples), found)
    assert lost == extra == samples.completion_lengths[row].sum()
    once = list(drift.answers_in(samples))
    assert drift.drift(once, [*once, once[0]]) == (0, len(once[0][1])), "an answer that is trained on twice"
    later = next(call for call in sessions[0].calls.values() if call.after is not None)
    ids = later.ids
    try:
        later.ids = [*ids[:-1], *drift.tokenizer_of("qwen2.5").encode("x")]
        assert not drift.rendered(later)
    finally:
        later.ids = ids


def test_threads_do_not_mix_sessions():
    """Two concurrent clients with separate keys have separate conversations."""
    count = drift.Count(drift.Recorder())

    async def talk():
        endpoint = Endpoint(drift.served("openai", count.recorder))
        gate = threading.Barrier(2)
        async with in_loop(endpoint.application()) as url:
            sessions = [await endpoint.sessions.open(seed=seed, policy_sampling=True) for seed in range(2)]

            def one(session):
                gate.wait(timeout=30)
                return drift_clients.talk_openai(dict(
                    url=f"{url}/v1", key=session.key, model="openai/smollm2", agents=2, turns=TURNS, tools=False,
                    stream=False, seed=session.seed,
                ))  # fmt: skip

            for session, conversations in zip(
                sessions, await asyncio.gather(*(asyncio.to_thread(one, s) for s in sessions)), strict=True
            ):
                count.add(session, conversations)

    asyncio.run(talk())
    assert len(count.trained) == 2 * TURNS and count.fine
