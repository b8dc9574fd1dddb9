"""Conformance of the endpoint with OpenAI's client, with a real model and a scripted sampler."""

import asyncio
import functools
import json
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.agents import scoring
from marl_jax.rollouts.host.collate import collate, sizes_for
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import Episode, Job
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from models.model import build
from tests.marl_jax.tiny_engine import QuickEngine, quick_jit
from tests.marl_jax.tiny_host import CONFIG, MAX_LENGTH, free_policy, merging_tokenizer
from tests.marl_jax.tiny_serving import Parrot, client, endpoint
from tests.models.tiny_models import random_params

openai = pytest.importorskip("openai", reason="openai is not installed (pip install -e .[test])")

HELLO = [{"role": "user", "content": "hello ab"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SUB = {"type": "function", "function": {"name": "sub", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def sampler():
    """Return a model with two small layers."""
    model = build(CONFIG)
    engine = QuickEngine(model, random_params(model, 0), dtype=jnp.float32, bucket=128, chunk=4)
    with BatcherThread(Batcher(engine, rows=8, max_length=MAX_LENGTH, chunk=4, tokenizer=merging_tokenizer())) as found:
        yield found


@pytest.fixture(scope="module")
def server(sampler):
    """Yield (URL, endpoint) of a server with that model."""
    speaker = Speaker(sampler, merging_tokenizer(), Sampling(max_new_tokens=32), MAX_LENGTH)
    found = Endpoint({"tiny": ServedModel.of("tiny", speaker, CONFIG.vocab_size)})
    with in_thread(found.application()) as url:
        yield url, found


@pytest.fixture(scope="module")
def real(server):
    """Return a client of that server."""
    return client(server[0], timeout=120)


def ask(client, **settings):
    return client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 12, **settings})


def joined(stream):
    """(text, finish, log-probs, usage) of each choice of a stream."""
    found, usage = {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text, finish, entries = found.get(choice.index, ("", None, []))
            entries = entries + (choice.logprobs.content if choice.logprobs else [])
            found[choice.index] = text + (choice.delta.content or ""), choice.finish_reason or finish, entries
    return found, usage


# ------------------------------------------------------------------------------------------------------- a real model


def test_a_stream_is_the_answer_in_pieces(real):
    whole = ask(real, seed=5, n=3, logprobs=True, temperature=0.8)
    found, usage = joined(ask(
        real, seed=5, n=3, logprobs=True, temperature=0.8, stream=True, stream_options={"include_usage": True}
    ))  # fmt: skip
    assert usage == whole.usage and usage.completion_tokens == 36
    for choice in whole.choices:
        text, finish, entries = found[choice.index]
        assert (text, finish) == (choice.message.content, choice.finish_reason)
        assert [e.token for e in entries] == [e.token for e in choice.logprobs.content]
        expected = choice.logprobs.content
        np.testing.assert_allclose([e.logprob for e in entries], [e.logprob for e in expected], atol=1e-5)
        assert b"".join(bytes(e.bytes or ()) for e in expected).decode(errors="replace") == choice.message.content
    assert len({choice.message.content for choice in whole.choices}) == 3


def test_the_likeliest_tokens_are_those_that_a_greedy_answer_has(real):
    answer = ask(real, temperature=0, logprobs=True, top_logprobs=4)
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-4)
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
    found, _ = joined(ask(real, temperature=0, logprobs=True, top_logprobs=4, stream=True))
    assert [e.top_logprobs[0].token for e in found[0][2]] == [e.token for e in answer.choices[0].logprobs.content]


def test_likely_tokens_are_of_the_distribution_that_was_drawn_from(real):
    answer = ask(real, temperature=0.5, top_p=0.9, logprobs=True, top_logprobs=20, seed=3)
    seen = 0
    for entry in answer.choices[0].logprobs.content:
        own = [top.logprob for top in entry.top_logprobs if top.bytes and top.bytes == entry.bytes]
        assert not own or own == [pytest.approx(entry.logprob, abs=1e-4)]
        assert sum(np.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-4
        seen += len(own)
    assert seen


def test_a_completion_of_ids_is_that_of_the_chat_they_spell(real):
    tokenizer = merging_tokenizer()
    ids = tokenizer.encode(tokenizer.chat(HELLO))
    answer = real.completions.create(model="tiny", prompt=ids, max_tokens=12, seed=5, logprobs=2)
    chat = ask(real, seed=5, logprobs=True).choices[0]
    assert answer.choices[0].text == chat.message.content
    assert answer.choices[0].logprobs.tokens == [entry.token for entry in chat.logprobs.content]
    pieces = real.completions.create(model="tiny", prompt=ids, max_tokens=12, seed=5, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == chat.message.content
    two = real.completions.create(model="tiny", prompt=["ab", "ba"], max_tokens=3, n=2)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]


def test_many_clients_at_once_get_their_own_answers(real):
    """60 requests from 20 clients, streamed and whole: each the answer that its question has alone."""

    def question(i):
        return dict(messages=[{"role": "user", "content": f"{i % 10}"}], seed=i % 10, max_tokens=5)

    alone = [ask(real, **question(i)).choices[0].message.content for i in range(10)]

    async def one(own, i):
        stream = i % 2 == 0
        answer = await own.chat.completions.create(model="tiny", **question(i), stream=stream)
        if not stream:
            return answer.choices[0].message.content
        return "".join([piece.choices[0].delta.content or "" async for piece in answer])

    async def everyone():
        async with openai.AsyncOpenAI(base_url=str(real.base_url), api_key="none-needed", timeout=120) as own:
            gate = asyncio.Semaphore(20)

            async def gated(i):
                async with gate:
                    return await one(own, i)

            return await asyncio.gather(*(gated(i) for i in range(60)))

    assert asyncio.run(everyone()) == [alone[i % 10] for i in range(60)]


def test_log_probs_of_a_session_are_those_of_the_learner(server):
    """Several turns, streamed and whole, several answers, a fork and tools: the learner finds what was recorded."""
    url, found = server
    opened = post_json(f"{url}/v1/sessions", {"seed": 1, "policy_sampling": True})
    own = client(url, key=opened["key"], timeout=120)

    finished = []

    def talk(messages, text, max_tokens=7, **more):
        messages = [*messages, {"role": "user", "content": text}]
        choices = ask(own, messages=messages, max_tokens=max_tokens, **more).choices
        finished.extend(choice.finish_reason for choice in choices)
        return [[*messages, choice.message.model_dump(exclude_none=True)] for choice in choices]

    first, second = talk([{"role": "system", "content": "ab"}], "one", n=2)
    (later,) = talk(second, "two")
    talk(later, "three", max_tokens=3, temperature=0.1)
    talk(second, "again")
    talk([*first[:-1], {"role": "assistant", "content": "else"}], "edited")
    talk([], "with a tool", tools=[ADD])
    streamed = joined(ask(own, messages=[*later, {"role": "user", "content": "streamed"}], max_tokens=4, stream=True))
    finished.append(streamed[0][0][1])
    session = found.sessions.get(opened["id"])
    chats = session.conversations()
    assert [len(chat.said) for chat in chats] == [3, 1, 1, 1, 1] and dict(session.forks) == {"edited": 1}
    episode = Episode(Job(0, 0, 0, None), chats)
    samples = collate([episode], sizes_for([episode]), n_seats=1)
    assert (samples.completion_lengths > 0).sum() == 8
    assert samples.truncated.sum() == finished.count("length") > 3
    params = random_params(build(CONFIG), 0)
    scores = quick_jit(functools.partial(scoring.score, free_policy(1.0)))(
        {"model": params}, jax.tree.map(jnp.asarray, samples)
    )
    np.testing.assert_allclose(scores.logps, samples.logps, atol=2e-5)


def post_json(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_answers_are_json_of_a_schema(real):
    pytest.importorskip("llguidance", reason="llguidance is not installed (pip install -e .[test])")
    fields = {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yy"]}}
    schema = {
        "type": "object", "properties": fields,
        "required": ["a", "b"], "additionalProperties": False,
    }  # fmt: skip
    strict = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    found = []
    for seed, stream in ((1, False), (2, False), (2, True)):
        asked = dict(response_format=strict, max_tokens=150, seed=seed, n=2, temperature=1.5)
        if stream:
            texts = [text for text, _, _ in joined(ask(real, stream=True, **asked))[0].values()]
        else:
            texts = [choice.message.content for choice in ask(real, **asked).choices]
        found += [json.loads(text) for text in texts]
    assert all(set(one) == {"a", "b"} and 0 <= one["a"] <= 99 and one["b"] in ("x", "yy") for one in found)
    assert found[2:4] == found[4:6] and len({json.dumps(one) for one in found}) > 2
    beside = ask(real, seed=5, logprobs=True)  # who has no schema is answered as ever
    assert beside.choices[0].message.content == ask(real, seed=5).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="response_format"):
        broken = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "nothing"}}}
        ask(real, response_format=broken)


def test_json_without_its_package_is_refused(real, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}):
        with pytest.raises(openai.BadRequestError, match="needs the package llguidance"):
            ask(real, response_format=kind)
    assert ask(real, response_format={"type": "text"}).choices


# ---------------------------------------------------------------------------------------------------------- responses


def scripted(text, **settings):
    return endpoint(Parrot(lambda prompt: text, **settings))


def test_stop_strings_are_not_part_of_the_answer():
    with scripted("one two END three") as (url, _):
        c = client(url)
        for stop in ("END", ["three", "END"], [" END thr"]):
            answer = c.chat.completions.create(model="one", messages=HELLO, stop=stop, logprobs=True).choices[0]
            assert answer.message.content.strip() == "one two" and answer.finish_reason == "stop"
            assert "".join(e.token for e in answer.logprobs.content).strip() == "one two"
            found, _ = joined(c.chat.completions.create(
                model="one", messages=HELLO, stop=stop, stream=True, logprobs=True
            ))  # fmt: skip
            assert found[0][:2] == (answer.message.content, "stop")
            assert [e.token for e in found[0][2]] == [e.token for e in answer.logprobs.content]


def test_calls_of_tools():
    text = 'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    with scripted(text) as (url, found):
        c = client(url)
        answer = c.chat.completions.create(model="one", messages=HELLO, tools=[ADD]).choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.content == "Sure."
        (call,) = answer.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        stream = c.chat.completions.create(model="one", messages=HELLO, tools=[ADD], stream=True)
        streamed = [chunk.choices[0] for chunk in stream]
        pieces = [delta for choice in streamed for delta in choice.delta.tool_calls or ()]
        assert [(p.index, p.function.name, json.loads(p.function.arguments)) for p in pieces] == [(0, "add", {"a": 1})]
        assert "".join(choice.delta.content or "" for choice in streamed).strip() == "Sure."
        assert streamed[-1].finish_reason == "tool_calls"
        # A tool that was not offered, or none: the unchanged text.
        for more in (dict(tools=[SUB]), dict(tools=[ADD], tool_choice="none"), {}):
            answer = c.chat.completions.create(model="one", messages=HELLO, **more).choices[0]
            assert answer.message.content == text and not answer.message.tool_calls


def test_a_tool_that_has_to_be_called_is_called():
    with scripted('{"a": {"b": 2}}}\n</tool_call>') as (url, found):
        named = {"type": "function", "function": {"name": "add"}}
        for choice in (named, "required"):
            answer = client(url).chat.completions.create(model="one", messages=HELLO, tools=[ADD], tool_choice=choice)
            (call,) = answer.choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": {"b": 2}})
        prompt, _ = found.models["one"].speaker.sampler.asked[-1]
        assert merging_tokenizer().decode(prompt).endswith('<tool_call>\n{"name": "add", "arguments": ')
    with scripted("no JSON at all") as (url, _):
        answer = client(url).chat.completions.create(model="one", messages=HELLO, tools=[ADD], tool_choice=named)
        assert answer.choices[0].message.tool_calls[0].function.arguments == "no JSON at all"


def say(content):
    return [{"role": "user", "content": content}]


def test_what_is_refused_and_how():
    limits = Limits(body_bytes=20_000, concurrent=2)
    sampler = Parrot(lambda prompt: "ab" * 20, delay=0.02)  # long enough for all requests to arrive
    with endpoint(sampler, keys=Keys.of("the-admins-key"), limits=limits) as (url, _):
        c = client(url, key="the-admins-key")
        create = c.chat.completions.create
        for error, code, asked in (
            (openai.NotFoundError, "model_not_found", dict(model="nine")),
            (openai.BadRequestError, "context_length_exceeded", dict(messages=say("a " * 600))),
            (openai.BadRequestError, None, dict(messages=[])),
            (openai.BadRequestError, None, dict(messages=[{"role": "king", "content": "x"}])),
            (openai.BadRequestError, None, dict(messages=say([{"type": "image_url"}]))),
            (openai.BadRequestError, None, dict(n=0)),
            (openai.BadRequestError, None, dict(temperature=-1)),
            (openai.BadRequestError, None, dict(top_logprobs=3)),
            (openai.BadRequestError, None, dict(stop=[""])),
            (openai.BadRequestError, None, dict(frequency_penalty=1)),
            (openai.BadRequestError, None, dict(tools=[ADD], tool_choice=SUB)),
            (openai.APIStatusError, "body_too_large", dict(messages=say("a" * 30_000))),
        ):  # fmt: skip
            for stream in (False, True):
                with pytest.raises(error) as caught:
                    create(**{"model": "one", "messages": HELLO, "stream": stream, **asked})
                assert caught.value.code == code
        with pytest.raises(openai.AuthenticationError):
            client(url, key="another-key").models.list()

        async def crowd():
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="the-admins-key", max_retries=0) as own:
                asked = (own.chat.completions.create(model="one", messages=HELLO) for _ in range(12))
                return await asyncio.gather(*asked, return_exceptions=True)

        found = asyncio.run(crowd())
        refused = [x for x in found if isinstance(x, openai.RateLimitError)]
        assert refused and len(refused) < 12 and all(x.response.headers["retry-after"] for x in refused)
        assert all(isinstance(x, openai.RateLimitError) or x.choices for x in found)


@pytest.mark.nightly
def test_a_client_with_retries_gets_through_a_crowd():
    with endpoint(Parrot(delay=0.01), limits=Limits(concurrent=2, retry_after=1)) as (url, _):

        async def crowd():
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none-needed", max_retries=8) as own:
                asked = (own.chat.completions.create(model="one", messages=HELLO) for _ in range(6))
                return await asyncio.gather(*asked)

        assert len(asyncio.run(crowd())) == 6
