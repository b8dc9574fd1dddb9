"""Worker processes behave as one server, whichever of them a client reaches."""

import collections
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import jax.numpy as jnp
import pytest
from starlette.responses import JSONResponse

from marl_jax.errors import RunError
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.prometheus import ServerMetrics, text_of
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.traces import TraceFile, read_traces
from marl_jax.serving.workers import pool
from marl_jax.serving.workers.forward import MOST_AHEAD
from models.model import build
from tests.marl_jax.tiny_engine import QuickEngine
from tests.marl_jax.tiny_host import CONFIG, MAX_LENGTH, merging_tokenizer
from tests.marl_jax.tiny_serving import Parrot, post, read_until, served, wait_for
from tests.models.tiny_models import random_params

HELLO = {"model": "one", "messages": [{"role": "user", "content": "hello ab"}]}
ADMIN = "sk-1-looks-like-that-of-a-session"
ROOT = Path(__file__).resolve().parents[3]


class Control:
    """A sampler that records its requests."""

    def __init__(self):
        self.asked = []

    def pause(self):
        self.asked.append("pause")

    drain = resume = pause


@pytest.fixture(scope="module")
def real():
    """Return a model with two small layers and bitwise reproducible completions."""
    model = build(CONFIG)
    engine = QuickEngine(model, random_params(model, 0), dtype=jnp.float32, bucket=128, chunk=4)
    batcher = Batcher(engine, rows=4, max_length=MAX_LENGTH, chunk=4, tokenizer=merging_tokenizer(), fixed_shapes=True)
    with BatcherThread(batcher) as found:
        yield found


def models_of(parrot, real):
    speaker = Speaker(real, merging_tokenizer(), Sampling(max_new_tokens=128), MAX_LENGTH)
    return served(parrot) | {"tiny": ServedModel.of("tiny", speaker, CONFIG.vocab_size)}


class Served:
    """A server of two workers: its address, those of the workers, and the sampler."""

    def __init__(self, url, parrot, real, control, traces):
        self.url, self.parrot, self.real, self.control, self.traces = url, parrot, real, control, traces
        opened = [post(url, "/v1/sessions", {}, ADMIN)[1] for _ in range(MOST_AHEAD + 2)]
        numbers = {int(one["id"].split("-")[1]): one["base_url"].removesuffix("/v1") for one in opened}
        assert sorted(numbers) == [0, 1], "one worker does not get all sessions"
        self.own = [numbers[0], numbers[1]]
        for one in opened:
            assert post(url, "/v1/sessions/current/end", {}, one["key"])[0] == 200

    def open(self, **settings):
        """Return a session, the address of its worker, and that of the other worker."""
        found = post(self.url, "/v1/sessions", settings, ADMIN)[1]
        number = int(found["id"].split("-")[1])
        return found, self.own[number], self.own[1 - number]


@pytest.fixture(scope="module")
def server(tmp_path_factory, real):
    parrot, control = Parrot(), Control()

    async def reload(model, step):
        if step == "9":
            raise RunError("there is no step 9")
        return 7

    async def look(request):
        body = (await request.body()).decode()
        return JSONResponse({"pid": os.getpid(), "query": str(request.url.query), "body": body})

    traces = TraceFile(tmp_path_factory.mktemp("workers") / "traces.jsonl")
    endpoint = Endpoint(
        models_of(parrot, real), keys=Keys.of(ADMIN), limits=Limits(body_bytes=5000, concurrent=4), traces=traces,
        reload=reload, control=control, routes=[Route("/look", look, methods=["GET", "POST"])],
    )  # fmt: skip
    with contextlib.closing(traces), pool.in_thread(endpoint, workers=2) as url:
        yield Served(url, parrot, real, control, traces.path)


@pytest.fixture
def slow(server):
    """Return a parrot whose completions take a minute."""
    server.parrot.script, server.parrot.delay = (lambda _: "ab" * 60), 1.0
    yield server.parrot
    server.parrot.script, server.parrot.delay = None, 0.0


def send(url, body, key=ADMIN, path="/v1/chat/completions"):
    """Return a connection on which a request has been sent."""
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30)
    text = json.dumps(body)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
    )
    return connection


def events(url, body, key=ADMIN, path="/v1/chat/completions"):
    """Return the events of a stream without the fields that differ each time."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", path, json.dumps(body | {"stream": True}), head)
    response = connection.getresponse()
    assert response.status == 200 and response.headers.get_all("x-request-id")[1:] == []
    lines = [line[6:] for line in response.read().decode().splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [without_ids(json.loads(line)) for line in lines]


def without_ids(answer):
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


def joined(chunks):
    """Return (text, log-probs) of each choice, because the split into chunks depends on timing."""
    found = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        text, entries = found.get(choice["index"], ("", []))
        new = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        found[choice["index"]] = text + (new or ""), entries + ((choice.get("logprobs") or {}).get("content") or [])
    return found


REQUESTS = [
    ("/v1/chat/completions", HELLO | {"seed": 3, "n": 3, "logprobs": True}),
    ("/v1/completions", {"model": "two", "prompt": ["ab", "b"], "seed": 1, "max_tokens": 4}),
    ("/v1/chat/completions", HELLO | {"model": "tiny", "seed": 5, "n": 2, "logprobs": True, "max_tokens": 9}),
    (
        "/v1/chat/completions",
        HELLO | {"model": "tiny", "seed": 5, "logprobs": True, "top_logprobs": 2, "max_tokens": 5},
    ),
]


def test_answers_are_those_of_a_server_in_one_process(server, real):
    with in_thread(Endpoint(models_of(Parrot(), real)).application()) as alone:
        for path, body in REQUESTS:
            expected = without_ids(post(alone, path, body)[1])
            for url in server.own:
                status, found = post(url, path, body, ADMIN)
                assert (status, without_ids(found)) == (200, expected)
            if not isinstance(body.get("prompt"), list):
                expected = joined(events(alone, body, path=path))
                assert [joined(events(url, body, path=path)) for url in server.own] == [expected] * 2
        for path in ("/v1/models", "/v1/models/tiny"):
            found = [post(url, path, None, ADMIN) for url in (server.url, *server.own)]
            assert found[0][0] == 200 and found[1:] == found[:1] * 2
        assert post(server.url, "/v1/completions", {"model": "tiny", "prompt": [10**12]}, ADMIN)[0] == 400


def conversation(ask):
    """Play three turns, each with the previous messages."""
    messages = HELLO["messages"]
    for turn in range(3):
        said = ask(turn, HELLO | {"messages": messages})
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": f"and {turn}?"}]


def test_a_session_is_one_conversation_whichever_way_its_calls_take(server):
    with in_thread(Endpoint(served(Parrot())).application()) as alone:
        opened = post(alone, "/v1/sessions", {"seed": 4})[1]
        conversation(lambda _, body: joined(events(alone, body, opened["key"]))[0][0])
        expected = post(alone, f"/v1/sessions/{opened['id']}", None)[1]
        assert opened["base_url"] == f"{alone}/v1"
    session, own, other = server.open(seed=4)
    ways, key = [own, other, server.url], session["key"]
    conversation(lambda turn, body: joined(events(ways[turn], body, key))[0][0])
    for url in (own, other):
        status, found = post(url, f"/v1/sessions/{session['id']}", None, ADMIN)
        assert status == 200 and len(found["conversations"]) == 1
        assert found["conversations"][0]["tokens"] == expected["conversations"][0]["tokens"]
        for call, like in zip(found["calls"], expected["calls"], strict=True):
            assert (call["prompt"], call["answers"]) == (like["prompt"], like["answers"])
    assert post(other, "/v1/sessions/current/reward", {"reward": 0.5}, key)[0] == 200
    assert post(other, f"/v1/sessions/{session['id']}/end", {}, ADMIN)[0] == 200
    assert [post(url, "/v1/chat/completions", HELLO, key)[0] for url in (own, other)] == [403, 403]
    traced = read_traces(server.traces)[session["id"]]
    assert traced.ended and [c.prompt for c in traced.calls.values()] == [c["prompt"] for c in expected["calls"]]
    assert list(traced.calls.values())[-1].answers[0].rewards == {"team": 0.5}


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_rows_in_the_other_process(server, slow, stream, in_session):
    before, (session, _, other) = slow.cancelled, server.open()
    with send(other, HELLO | {"stream": stream}, session["key"] if in_session else ADMIN) as connection:
        wait_for(lambda: slow.under_way)
        if stream:
            read_until(connection, b"chat.completion.chunk")
    wait_for(lambda: not slow.under_way)
    assert slow.cancelled == before + 1
    post(other, "/v1/sessions/current/end", {}, session["key"])


def test_rows_of_a_real_batcher_are_freed(server):
    with send(server.url, HELLO | {"model": "tiny", "n": 4, "max_tokens": 400}):
        wait_for(lambda: server.real.usage.running)
    wait_for(lambda: not server.real.usage.running)


def test_what_is_refused_is_refused_by_any_worker(server):
    session, own, other = server.open(models=["one"])
    for url in (own, other):
        assert post(url, "/v1/chat/completions", HELLO, "wrong-key-here")[0] == 401
        assert post(url, "/v1/chat/completions", HELLO, "sk-0-no-such-session")[0] == 401
        assert post(url, "/v1/chat/completions", HELLO, "sk-77-no-such-worker")[0] == 401
        assert post(url, "/v1/sessions", {})[0] == 401
        assert post(url, "/v1/sessions/sess-0-none", None, ADMIN)[0] == 404
        assert post(url, "/v1/sessions/sess-1-none", None, session["key"])[0] == 403
        assert post(url, "/v1/sessions", {}, session["key"])[0] == 403
        assert post(url, "/look", None, session["key"])[0] == 403
        assert post(url, "/v1/chat/completions", HELLO | {"model": "two"}, session["key"])[0] == 404
        assert post(url, "/v1/chat/completions", HELLO | {"model": "nine"}, ADMIN)[0] == 404
        assert post(url, "/v1/chat/completions", {"model": "x" * 6000}, session["key"])[0] == 413
        assert post(url, "/v1/sessions", b"{", ADMIN, raw=True)[0] == 400
    post(own, "/v1/sessions/current/end", {}, session["key"])


def test_the_limit_on_requests_counts_those_of_all_workers(server, slow):
    with contextlib.ExitStack() as stack:
        for i in range(4):
            stack.enter_context(send(server.own[i % 2], HELLO))
        wait_for(lambda: slow.under_way == 4)
        for url in server.own:
            assert post(url, "/v1/chat/completions", HELLO, ADMIN)[0] == 429
            assert post(url, "/health", None)[0] == 200
            assert "http_requests_under_way 4\n" in metrics(url)
    wait_for(lambda: not slow.under_way)
    wait_for(lambda: "http_requests_under_way 0\n" in metrics(server.url))


def metrics(url):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {ADMIN}"})
    return connection.getresponse().read().decode()


def counted(url, name):
    return sum(float(line.rpartition(" ")[2]) for line in metrics(url).splitlines() if line.startswith(name))


def test_metrics_and_health_are_those_of_all_workers(server):
    chats = 'http_requests_total{path="/v1/chat/completions",status="200"}'
    seconds = 'http_request_seconds_count{path="/v1/chat/completions"}'
    before, sessions = (counted(server.url, chats), counted(server.url, seconds)), counted(server.url, "serving_open")
    for url in (*server.own, *server.own, server.url):
        assert post(url, "/v1/chat/completions", HELLO, ADMIN)[0] == 200
    opened = [server.open()[0] for _ in range(3)]
    for url in server.own:
        assert (counted(url, chats), counted(url, seconds)) == (before[0] + 5, before[1] + 5)
        assert counted(url, "serving_open_sessions") == sessions + 3
        assert post(url, "/health", None)[1]["sessions"] == sessions + 3
    for one in opened:
        post(server.url, "/v1/sessions/current/end", {}, one["key"])
    assert counted(server.url, "serving_open_sessions") == sessions


def test_the_text_of_several_metrics_is_that_of_all_events_in_one():
    parts, whole = [ServerMetrics(), ServerMetrics(), ServerMetrics()], ServerMetrics()
    for i in range(30):
        for one in (parts[i % 3], whole):
            one.count("a_total", "A.", i, kind=str(i % 2))
            one.observe("s_seconds", "S.", i / 8, path="x")
    for k, one in enumerate(parts):
        one.gauge("g", "G.", lambda k=k: k)
    whole.gauge("g", "G.", lambda: 3)
    sent = json.loads(json.dumps([one.snapshot() for one in parts]))
    assert text_of(sent) == whole.text() and 'a_total{kind="0"} 210\n' in whole.text()


def test_weights_and_pausing_reach_the_process_with_the_models(server):
    before = len(server.control.asked)
    for url in server.own:
        assert post(url, "/v1/weights", {"model": "one", "step": 2}, ADMIN) == (200, {"model": "one", "version": 7})
        assert post(url, "/v1/weights", {"model": "one", "step": 9}, ADMIN)[0] == 400
        assert [post(url, f"/v1/{name}", {}, ADMIN)[0] for name in ("pause", "resume", "drain")] == [200] * 3
        assert post(url, "/look?a=1", {"x": 1}, ADMIN)[1] == {"pid": os.getpid(), "query": "a=1", "body": '{"x": 1}'}
        assert post(url, "/look", None)[0] == 401
    assert len(server.control.asked) == before + 6


def test_sessions_of_one_connection_are_spread_over_the_workers(server):
    connection, opened = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30), []
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN}"}
    for _ in range(20):
        connection.request("POST", "/v1/sessions", "{}", head)
        opened.append(json.loads(connection.getresponse().read()))
    counts = collections.Counter(one["id"].split("-")[1] for one in opened)
    assert sorted(counts) == ["0", "1"] and max(counts.values()) - min(counts.values()) <= MOST_AHEAD + 1
    for one in opened:
        assert post(server.url, "/v1/sessions/current/end", {}, one["key"])[0] == 200


def test_a_retry_at_another_worker_gets_the_same_answer(server):
    session, own, other = server.open(seed=3)
    asked = len(server.parrot.asked)
    answers = [
        post(url, "/v1/chat/completions", HELLO, session["key"], {"x-stainless-retry-count": str(i)})
        for i, url in enumerate((own, other, server.url, other))
    ]
    assert len(server.parrot.asked) == asked + 1 and answers[0][0] == 200
    assert answers[1:] == answers[:1] * 3
    post(own, "/v1/sessions/current/end", {}, session["key"])


def test_many_sessions_at_once_are_not_mixed_up_and_all_traced(server):
    found = {}

    def talk(i):
        session, own, other = server.open(seed=i % 3)
        texts = []
        conversation(lambda turn, body: texts.append(joined(events((own, other)[turn % 2], body, session["key"]))[0][0])
                     or texts[-1])  # fmt: skip
        post(server.url, "/v1/sessions/current/end", {}, session["key"])
        found[session["id"]] = i % 3, texts

    for _ in range(3):
        threads = [threading.Thread(target=talk, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_seed = dict(found.values())
    assert len(found) == 9 and all(texts == by_seed[seed] for seed, texts in found.values())
    traces, tokenizer = read_traces(server.traces), merging_tokenizer()
    for id_, (_, texts) in found.items():
        calls = list(traces[id_].calls.values())
        assert [tokenizer.decode(c.answers[0].tokens, skip_special=True) for c in calls] == texts


def test_a_body_in_chunks_is_forwarded(server):
    session, own, other = server.open(seed=1)
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {session['key']}", "Expect": "100-continue"}
    text, answers = json.dumps(HELLO | {"seed": 2}).encode(), []
    for url in (own, other):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request("POST", "/v1/chat/completions", iter([text[:9], text[9:]]), head)
        answers.append(connection.getresponse())
    found = [without_ids(json.loads(answer.read())) for answer in answers]
    assert [answer.status for answer in answers] == [200, 200] and found[0] == found[1]
    assert [len(answer.headers.get_all(name)) for answer in answers for name in ("date", "x-request-id")] == [1] * 4
    connection = http.client.HTTPConnection(urlsplit(other).netloc, timeout=30)
    connection.request("HEAD", f"/v1/sessions/{session['id']}", headers={"Authorization": f"Bearer {ADMIN}"})
    assert connection.getresponse().status == 200
    post(own, "/v1/sessions/current/end", {}, session["key"])


def test_workers_hear_of_a_sampler_that_failed(server):
    assert post(server.url, "/health", None)[0] == 200
    server.parrot.running = False
    for url in server.own:
        wait_for(lambda url=url: post(url, "/health", None)[0] == 503)
        assert post(url, "/health", None)[1]["failed"] == ["one", "two"]


# --------------------------------------------------------------------------------------------------------------- ends


def start():
    return subprocess.Popen(
        [sys.executable, "-m", "tests.marl_jax.serving.workers_run"], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def workers_of(pid):
    """Return the processes of a server."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            if pool.WORKER in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


needs_proc = pytest.mark.skipif(not list(Path("/proc/self/task").glob("*/children")), reason="/proc has no children")


@pytest.mark.nightly
@needs_proc
def test_a_server_ends_with_the_process_that_has_the_models():
    """SIGTERM lets requests in progress finish, and no workers survive a kill."""
    drained, killed = servers = [start(), start()]
    try:
        urls = [process.stdout.readline().strip() for process in servers]
        assert all(urls), [process.stderr.read() for process in servers]
        workers = [workers_of(process.pid) for process in servers]
        assert list(map(len, workers)) == [1, 1]
        with send(urls[0], HELLO, "none") as connection:
            wait_for(lambda: counted(urls[0], "http_requests_under_way") == 1)
            for pid in (*workers[0], drained.pid):  # a supervisor may signal all of them
                os.kill(pid, signal.SIGTERM)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert b"200 OK" in answer and b"abab" in answer
        assert drained.stdout.read() == "stopped\n" and drained.wait(30) == 0

        with send(urls[1], HELLO, "none") as connection:
            wait_for(lambda: counted(urls[1], "http_requests_under_way") == 1)
            killed.kill()
            wait_for(lambda: gone(workers[1][0]), 20)
        assert "the process with the models is gone" in killed.stderr.read()
        assert gone(workers[0][0])
    finally:
        for process in servers:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


@needs_proc
def test_a_worker_that_is_killed_ends_the_server(caplog):
    before = workers_of(os.getpid())
    with (
        pytest.raises(RunError, match=r"worker [01] \(process \d+\) ended by signal 9, so the server was shut down"),
        pool.in_thread(Endpoint(served(Parrot())), workers=2) as url,
    ):
        assert post(url, "/v1/chat/completions", HELLO)[0] == 200
        new = [pid for pid in workers_of(os.getpid()) if pid not in before]
        assert len(new) == 2
        assert not any("jaxlib" in Path(f"/proc/{pid}/maps").read_text() for pid in new), "a worker imports no JAX"
        os.kill(new[0], signal.SIGKILL)
        wait_for(lambda: all(gone(pid) for pid in new), 30)
    assert "ended by signal 9; the server is shutting down" in caplog.text
    with pytest.raises(OSError, match="refused"):
        post(url, "/health", None)
