"""Recorded conversations of LlamaIndex and AG2 with a server (`benchmarks.drift_record`), replayed: nothing drifts."""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest

from benchmarks import drift, drift_record
from marl_jax.serving.http.server import in_loop
from marl_jax.serving.openai.endpoint import Endpoint

pytestmark = pytest.mark.nightly

GOLDEN = Path(__file__).parent / "golden"
HERMES = ("qwen2.5", "qwen3", "smollm2")  # templates with the recorded format of tool calls


def send(url, key, body):
    """Return the content of a reply, complete or streamed."""
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        if not body["stream"]:
            return json.load(response)["choices"][0]["message"]["content"] or ""
        chunks = [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def replay(calls, conversations, template, change=lambda body: body):
    """Return the counts of a conversation's calls, and the replies."""
    count = drift.Count(drift.Recorder(drift_record.Replayed([call["answer"] for call in calls]), share=0.0))

    async def talk():
        endpoint = Endpoint(drift.served("recorded", count.recorder))
        async with in_loop(endpoint.application()) as url:
            session = await endpoint.sessions.open(seed=0)
            bodies = [change(call["body"]) | {"model": f"recorded/{template}"} for call in calls]
            replies = [await asyncio.to_thread(send, url, session.key, body) for body in bodies]
            count.add(session, conversations)
            return replies

    return count, asyncio.run(talk())


@pytest.mark.parametrize("talk", ["whole", "streams"])
@pytest.mark.parametrize("framework", ["ag2", "llamaindex"])
def test_a_recorded_talk_is_trained_on_as_it_was_sampled(framework, talk):
    conversations, calls = drift_record.read(GOLDEN / f"drift_{framework}.jsonl")[talk]
    assert {call["body"]["stream"] for call in calls} == {talk == "streams"}
    for template in HERMES:
        count, replies = replay(calls, conversations, template)
        assert count.drift == (0, 0) and count.rendered == 0, template
        assert count.merged == 1.0 and not +count.forks and count.ideal == len(calls) - conversations >= 5, template
        assert count.tool_calls == sum("<tool_call>" in call["answer"] for call in calls) >= 2
        assert count.retokenised > len(calls) / 3, "the tokenizer would give the same ids, so nothing was tried"
        assert replies == [call["answer"].partition("<tool_call>")[0].rstrip("\n" * ("<tool_call>" in call["answer"]))
                           for call in calls]  # fmt: skip


def test_an_answer_that_the_client_changed_is_a_fork():
    """The check above can fail: one changed word in the last completion of a request is detected."""
    conversations, calls = drift_record.read(GOLDEN / "drift_ag2.jsonl")["whole"]

    def change(body):
        return json.loads(json.dumps(body).replace("so it is 42", "so it was 42"))

    count, _ = replay(calls, conversations, "qwen2.5", change)
    assert count.merged < 1.0 and count.forks["edited"] >= 1 and count.drift == (0, 0)
