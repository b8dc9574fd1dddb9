"""Faults: clients that disconnect, retry, send nonsense or have the wrong key, and a killed server."""

import asyncio
import dataclasses
import http.client
import json
import logging
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.traces import TraceFile, read_traces
from tests.marl_jax.tiny_host import merging_tokenizer
from tests.marl_jax.tiny_serving import Parrot, endpoint, post, read_until, served, wait_for

HELLO = {"model": "one", "messages": [{"role": "user", "content": "hello"}]}
ADMIN = "the-admins-key"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("in_session", [False, True])
def test_a_client_that_hangs_up_frees_its_rows(stream, in_session):
    sampler = Parrot(lambda _: "ab" * 50, delay=0.5)
    with endpoint(sampler) as (url, found):
        key = post(url, "/v1/sessions", {})[1]["key"] if in_session else "none"
        body = json.dumps(HELLO | {"stream": stream})
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as connection:
            connection.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            wait_for(lambda: sampler.under_way)
            if stream:
                read_until(connection, b"chat.completion.chunk")
        wait_for(lambda: not sampler.under_way)
        assert sampler.cancelled == 1
        assert all(not session.conversations() for session in found.sessions.open_sessions.values())


def test_a_storm_of_retries_makes_one_answer():
    sampler = Parrot(delay=0.02)
    with endpoint(sampler) as (url, found):
        session = post(url, "/v1/sessions", {"seed": 3})[1]
        answers = [None] * 30

        def ask(i):
            retry = {"x-stainless-retry-count": str(i)}
            answers[i] = post(url, "/v1/chat/completions", HELLO, session["key"], retry)

        ask_first = threading.Thread(target=ask, args=(0,))
        ask_first.start()
        wait_for(lambda: sampler.under_way or answers[0])
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(1, 30)]
        for thread in (*threads,):
            thread.start()
        for thread in (ask_first, *threads):
            thread.join()
        assert len(sampler.asked) == 1 and len({json.dumps(answer) for answer in answers}) == 1
        assert answers[0][0] == 200
        post(url, "/v1/chat/completions", HELLO, session["key"], {"x-stainless-retry-count": "0"})
        assert len(sampler.asked) == 2  # the same body without a retry header is a new request


def test_keys_of_sessions_open_their_sessions_only():
    with endpoint(Parrot(), keys=Keys.of(ADMIN)) as (url, _):
        assert post(url, "/v1/sessions", {})[0] == 401
        assert post(url, "/v1/chat/completions", HELLO, "wrong-key-here")[0] == 401
        one, two = (post(url, "/v1/sessions", {"models": ["one"]}, ADMIN)[1] for _ in range(2))
        status, answer = post(url, "/v1/chat/completions", HELLO, one["key"])
        assert status == 200
        assert post(url, "/v1/chat/completions", HELLO | {"model": "two"}, one["key"])[0] == 404
        for path, body in (
            ("/v1/sessions", {}), (f"/v1/sessions/{two['id']}", None),
            (f"/v1/sessions/{two['id']}/reward", {"reward": 1}),
            (f"/v1/sessions/{two['id']}/end", {}), ("/v1/pause", {}), ("/v1/weights", {"model": "one"}),
        ):  # fmt: skip
            assert post(url, path, body, one["key"])[0] == 403, path
        for bad in ("x", None, True, {"a": 1}):
            assert post(url, "/v1/sessions/current/reward", {"reward": bad}, one["key"])[0] == 400
        assert post(url, "/v1/sessions/current/reward", {"reward": 0.5, "call": answer["id"]}, one["key"])[0] == 200
        status, seen = post(url, f"/v1/sessions/{one['id']}", None, ADMIN)
        assert status == 200 and seen["calls"][0]["answers"][0]["rewards"]["team"] == 0.5
        assert seen["conversations"][0]["calls"] == [answer["id"]]
        assert post(url, "/v1/sessions/current/end", {}, one["key"])[0] == 200
        status, error = post(url, "/v1/chat/completions", HELLO, one["key"])
        assert (status, error["error"]["code"]) == (403, "session_ended")
        assert post(url, "/v1/sessions/none", None, ADMIN)[0] == 404


def test_sessions_that_were_left_behind_are_ended():
    with endpoint(Parrot(), session_idle=1.0) as (url, found):
        left, used = (post(url, "/v1/sessions", {})[1] for _ in range(2))
        found.sessions.get(used["id"]).last_used += 1000
        wait_for(lambda: list(found.sessions.open_sessions) == [used["id"]])
        assert post(url, "/v1/chat/completions", HELLO, left["key"])[0] == 403
        assert post(url, "/v1/chat/completions", HELLO, used["key"])[0] == 200


def test_fields_of_the_admin_of_any_type_are_refused():
    async def reload(model, step):
        return 1

    with endpoint(Parrot(), reload=reload) as (url, _):
        for value in ([], ["one"], {}, 3, None, True, "nine"):
            assert post(url, "/v1/weights", {"model": value})[0] == 404, value
        for value in ([], {}, 0.5, None, True):
            assert post(url, "/v1/weights", {"model": "one", "step": value})[0] == 400, value
        assert post(url, "/v1/weights", {"model": "one", "step": 3})[0] == 200


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps_changes_no_limit(years, monkeypatch):
    """Time limits, idle sessions and deadlines use a clock that does not jump."""
    sampler, now = Parrot(lambda _: "ab" * 9, delay=0.02), time.time
    with endpoint(sampler, session_idle=2.0, limits=Limits(seconds=20.0)) as (url, found):
        session = post(url, "/v1/sessions", {})[1]
        asking = threading.Thread(
            target=lambda: answers.append(post(url, "/v1/chat/completions", HELLO, session["key"]))
        )
        answers = []
        asking.start()
        wait_for(lambda: sampler.under_way)
        monkeypatch.setattr(time, "time", lambda: now() + years * 365 * 86_400)
        asking.join()
        assert answers[0][0] == 200 and post(url, "/v1/chat/completions", HELLO, session["key"])[0] == 200
        assert session["id"] in found.sessions.open_sessions


def test_weights_and_pausing_are_the_admins():
    asked = []

    async def reload(model, step):
        asked.append((model, step))
        return 7

    class Control:
        def pause(self):
            asked.append("pause")

        drain = resume = pause

    with endpoint(Parrot(), reload=reload, control=Control()) as (url, _):
        assert post(url, "/v1/weights", {"model": "one", "step": 200}) == (200, {"model": "one", "version": 7})
        assert post(url, "/v1/weights", {"model": "nine"})[0] == 404
        assert [post(url, f"/v1/{name}", {})[0] for name in ("pause", "resume", "drain")] == [200] * 3
    assert asked == [("one", "200"), "pause", "pause", "pause"]


VALID = HELLO | {
    "n": 2, "stream": False, "stop": ["x"], "temperature": 0.5, "seed": 1, "max_tokens": 5, "top_p": 0.9,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto",
    "response_format": {"type": "text"}, "stream_options": {"include_usage": True}, "logprobs": True,
}  # fmt: skip
JUNK = [None, True, -1, 0, 1e300, "", "x" * 50, [], {}, [[]], {"a": 1}, [None], "\ud800", 10**30, [{"role": "user"}]]


def test_nonsense_by_the_thousand_is_refused_and_leaves_no_trace(caplog):
    """Valid requests with arbitrary values or damaged bytes each get a completion or status 4xx."""
    rng = random.Random(0)
    bodies = []
    for _ in range(500):
        value = json.loads(json.dumps(VALID))
        for _ in range(rng.randint(1, 3)):
            at = value
            while True:
                keys = list(at) if isinstance(at, dict) else range(len(at))
                key = rng.choice(list(keys)) if len(keys) else None
                if key is None or not isinstance(at[key], dict | list) or rng.random() < 0.4:
                    break
                at = at[key]
            if key is not None:
                at[key] = rng.choice(JUNK)
        bodies.append(json.dumps(value).encode())
    for _ in range(500):
        text = bytearray(json.dumps(VALID).encode())
        for _ in range(rng.randint(1, 5)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        bodies.append(bytes(text[: rng.randrange(len(text) + 1)]))
    deep = b"[" * 900 + b"]" * 900
    odd = [{"chat_template_kwargs": {name: 1}} for name in ("messages", "self", "a-b", "template")]
    bodies += [json.dumps(VALID | one).encode() for one in odd] * 3
    placed = [json.dumps(VALID | {name: "DEEP"}).encode() for name in ("tools", "metadata")]
    bodies += [body.replace(b'"DEEP"', deep) for body in placed] * 3
    statuses = set()
    with caplog.at_level(logging.WARNING), endpoint(Parrot()) as (url, found):
        paths = ("/v1/chat/completions", "/v1/completions", "/v1/sessions")
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        for i, body in enumerate(bodies):
            connection.request("POST", paths[i % 3], body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            value = json.loads(response.read())
            statuses.add(response.status)
            assert response.status == 200 or set(value["error"]) == {"message", "type", "param", "code"}, body
            assert response.status < 500, body
    assert 200 in statuses and 400 in statuses
    assert not caplog.records


def test_requests_that_a_stop_interrupts_get_status_503_and_the_log_one_line(caplog):
    sampler, answers = Parrot(lambda _: "ab" * 500, delay=0.05), []

    def ask(stream):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(HELLO | {"stream": stream}), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        answers.append((response.status, response.headers["Retry-After"], response.read().decode()))

    found = Endpoint(served(sampler))
    threads = [threading.Thread(target=ask, args=(i % 2 == 1,)) for i in range(10)]
    with caplog.at_level(logging.WARNING):
        with in_thread(found.application(), drain_seconds=0.3) as url:
            for thread in threads:
                thread.start()
            wait_for(lambda: sampler.under_way == 10)
        for thread in threads:
            thread.join()
    assert [record.getMessage() for record in caplog.records] == [
        "10 requests did not finish within 0.3 s (serve.drain) and were answered with status 503"
    ]
    assert sorted(status for status, _, _ in answers) == [200] * 5 + [503] * 5
    for status, wait, text in answers:
        error = json.loads(text if status == 503 else text.rstrip().rpartition("data: ")[2])["error"]
        assert error["code"] == "server_ending" and wait == ("1" if status == 503 else None)
    assert sampler.cancelled == 10


def test_a_template_that_fails_does_not_name_its_file_to_clients():
    broken = dict(template="{{ 1 / 0 }}", template_source="/models/tokenizer_config.json")
    sampler = Parrot(tokenizer=dataclasses.replace(merging_tokenizer(), **broken))
    with endpoint(sampler) as (url, _):
        status, found = post(url, "/v1/chat/completions", HELLO)
    assert status == 400
    assert found["error"]["message"] == "the chat template failed: ZeroDivisionError: division by zero"


@pytest.mark.nightly
def test_a_kill_loses_no_answer_that_a_client_has(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.marl_jax.serving.serving_run", str(tmp_path)], stdin=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    got, partial, stop = {}, {}, threading.Event()
    try:
        wait_for((tmp_path / "address.json").exists, 60)
        known = json.loads((tmp_path / "address.json").read_text())

        def ask(i):
            while not stop.is_set():
                try:
                    answer = post(known["url"], "/v1/chat/completions", HELLO | {"n": 2}, known["key"])[1]
                    got[answer["id"]] = [choice["message"]["content"] for choice in answer["choices"]]
                except (OSError, ValueError, http.client.HTTPException):
                    return

        def follow(i):
            while not stop.is_set():
                try:
                    connection = http.client.HTTPConnection(urlsplit(known["url"]).netloc, timeout=30)
                    head = {"Content-Type": "application/json", "Authorization": f"Bearer {known['key']}"}
                    connection.request("POST", "/v1/chat/completions", json.dumps(HELLO | {"stream": True}), head)
                    response = connection.getresponse()
                    while line := response.readline():
                        if line.startswith(b"data: {"):
                            chunk = json.loads(line[6:])
                            text = chunk["choices"][0]["delta"].get("content", "")
                            partial[chunk["id"]] = partial.get(chunk["id"], "") + text
                except (OSError, ValueError, http.client.HTTPException):
                    return

        threads = [threading.Thread(target=task, args=(i,)) for i, task in enumerate([ask] * 4 + [follow] * 4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(got) > 20 and sum(map(bool, list(partial.values()))) > 20, 120)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    stop.set()
    for thread in threads:
        thread.join()
    with open(tmp_path / "traces.jsonl", "ab") as file:
        file.write(b'{"event": "answ')  # as if killed while writing
    calls = read_traces(tmp_path / "traces.jsonl")[known["session"]].calls
    for id_, texts in got.items():
        assert [answer.text for answer in calls[id_].answers] == texts
    tokenizer = Parrot().tokenizer
    for id_, text in partial.items():
        if not text:  # the event before the first token does not wait for the line of the call
            continue
        (answer,) = calls[id_].answers
        assert tokenizer.decode(answer.tokens, skip_special=True).startswith(text)

    async def continues():
        file = TraceFile(tmp_path / "traces.jsonl")
        await file.write({"event": "end", "session": known["session"]}, sync=True)
        file.close()

    asyncio.run(continues())
    assert read_traces(tmp_path / "traces.jsonl")[known["session"]].ended
