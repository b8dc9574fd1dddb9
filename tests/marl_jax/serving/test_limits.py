"""Limits on the work of one request: completions, messages, tokens, and the time that it holds the event loop."""

import asyncio
import contextlib
import json
import time

import pytest

from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.server import in_loop
from marl_jax.serving.openai.endpoint import Endpoint
from tests.marl_jax.tiny_serving import Parrot, endpoint, post, served, wait_for

SAY = [{"role": "user", "content": "hello"}]


@contextlib.asynccontextmanager
async def longest_gap(gaps):
    """Append the longest time, in CPU seconds of its thread, for which the event loop did not wake a sleeper."""
    gap, running = 0.0, True

    async def tick():
        nonlocal gap
        last = time.thread_time()
        while running:
            await asyncio.sleep(0.005)
            gap, last = max(gap, time.thread_time() - last), time.thread_time()

    ticking = asyncio.ensure_future(tick())
    yield
    running = False
    await ticking
    gaps.append(gap)


def asked(bodies, **settings):
    """Return (statuses and answers, longest gap of the event loop) of requests to /v1/completions, one by one."""

    async def run():
        found, gaps = [], []
        endpoint = Endpoint(served(Parrot(lambda prompt: "ab")), **settings)
        async with in_loop(endpoint.application()) as url:
            opened = await endpoint.sessions.open()
            async with longest_gap(gaps):
                for path, body in bodies:
                    key = opened.key if "session" in body else ""
                    body = json.dumps({name: value for name, value in body.items() if name != "session"})
                    found.append(await asyncio.to_thread(post, url, path, body, key, raw=True))
        return found, gaps[0]

    return asyncio.run(run())


def test_two_hundred_thousand_prompts_are_refused_at_once():
    [(status, answer)], gap = asked([("/v1/completions", {"model": "one", "prompt": ["a"] * 200_000})])
    assert status == 413 and answer["error"]["code"] == "request_too_large" and answer["error"]["param"] == "prompt"
    assert answer["error"]["message"] == (
        "the request has 200000 completions, but must have at most 4096 (serve.max_completions). Split it."
    )
    assert gap < 1


@pytest.mark.parametrize("session", [False, True])
def test_many_prompts_leave_the_event_loop_to_others(session):
    body = {"model": "one", "prompt": [f"number {i}" for i in range(600)], "max_tokens": 4}
    found, gap = asked([("/v1/completions", body | ({"session": True} if session else {}))] * 2)
    assert [status for status, _ in found] == [200, 200] and len(found[0][1]["choices"]) == 600
    assert gap < 0.5


def test_long_texts_are_tokenized_in_a_thread():
    """The tokenizer of words takes a while for this text, and has to let others run."""
    long = "a b " * 20_000
    bodies = [
        ("/v1/completions", {"model": "one", "prompt": long}),
        ("/v1/completions", {"model": "one", "prompt": [long] * 8}),
    ]
    found, gap = asked(bodies)
    assert [(status, value["error"]["code"]) for status, value in found] == [(400, "context_length_exceeded")] * 2
    assert gap < 0.5


CASES = {
    "prompts": ("/v1/completions", {"prompt": ["a"] * 9}, "9 completions, but must have at most 8", "prompt"),
    "n": ("/v1/completions", {"prompt": ["a"] * 3, "n": 3}, "9 completions", "prompt"),
    "messages": ("/v1/chat/completions", {"messages": SAY * 6}, "6 messages, but must have at most 5", "messages"),
    "chat tokens": ("/v1/chat/completions", {"messages": SAY, "n": 8, "max_tokens": 60}, "480 tokens", "n"),
    "prompt tokens": ("/v1/completions", {"prompt": [[97] * 99] * 4, "max_tokens": 1}, "400 tokens", "prompt"),
    "text tokens": ("/v1/completions", {"prompt": ["a " * 99] * 3, "max_tokens": 1}, "597 tokens", "prompt"),
    "metadata": ("/v1/sessions", {"metadata": "x" * 65_535}, "metadata has 65537 characters", "metadata"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_too_large_is_status_413(case):
    path, more, words, param = CASES[case]
    limits = Limits(completions=8, messages=5, request_tokens=399)
    with endpoint(Parrot(), limits=limits) as (url, _):
        status, answer = post(url, path, {"model": "one"} | more)
        assert status == 413 and words in answer["error"]["message"], answer
        assert (answer["error"]["param"], answer["error"]["code"]) == (param, "request_too_large")
        assert post(url, "/v1/completions", {"model": "one", "prompt": ["a"] * 4, "n": 2})[0] == 200


@pytest.mark.parametrize(
    "more", [{"stop": ["x" * 1025]}, {"stop": ["x"] * 17}, {"prompt": "x" * 400_000}, {"prompt": [2**31]}]
)
def test_other_lists_and_texts_have_limits_too(more):
    with endpoint(Parrot()) as (url, _):
        assert post(url, "/v1/completions", {"model": "one", "prompt": "a", **more})[0] == 400
        assert post(url, "/v1/sessions", {"models": ["one"] * 3})[0] == 400


def test_a_schema_is_compiled_in_a_thread_and_limited():
    def body(n):
        properties = {f"p{i}": {"type": "string", "enum": ["a", "b"]} for i in range(n)}
        schema = {"type": "object", "properties": properties}
        response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return {"model": "one", "messages": SAY, "response_format": response_format}

    pytest.importorskip("llguidance", reason="llguidance is not installed")
    found, gap = asked([("/v1/chat/completions", body(n)) for n in (800, 2000)])
    assert [status for status, _ in found] == [200, 400] and gap < 0.5
    assert "at most 65536 characters" in found[1][1]["error"]["message"]


def test_the_first_failure_of_several_prompts_frees_the_rows_of_the_others():
    sampler = Parrot(lambda prompt: "ab" * 50, delay=0.5)
    with endpoint(sampler) as (url, _):
        assert post(url, "/v1/completions", {"model": "one", "prompt": ["a", "a " * 900]})[0] == 400
        wait_for(lambda: sampler.cancelled == 1 and not sampler.under_way, 5)
