"""The client of a reward server, against fake servers that are down, slow, wrong or hostile."""

import asyncio
import contextlib
import http.server
import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks import scorer_client
from envs.tasks.replies import EpisodeError
from envs.tasks.scorer_client import BadScores, ScorerClient, ScorerRefused, ScorerUnavailable, WrongScorer
from tests.conftest import examples

CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(scorer_client, "FIRST_WAIT", 0.02)


@contextlib.contextmanager
def serving(*answers):
    """Start a server that returns (status, body, headers) one after the other, and then repeats the last.

    A callable is given the handler and answers by itself. Yields the URL and the requests so far.
    """
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), body))
            answer = answers[min(len(requests), len(answers)) - 1]
            if callable(answer):
                return answer(self)
            status, text, headers = answer
            text = text if isinstance(text, bytes) else json.dumps(text).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(text)

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.02))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ok(**more):
    return 200, {"result": [0.25], **more}, {}


def score(url, chats=(CHAT,), **settings):
    return asyncio.run(ScorerClient(url, **{"deadline": 5.0, **settings}).score(chats))


def test_scores_come_back_and_the_key_goes_along(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "secret-123")
    with serving(ok(version="v1")) as (url, requests):
        assert score(url + "/", version="v1", key_env="OTHER_KEY") == [0.25]
    path, headers, body = requests[0]
    assert path == "/predict" and json.loads(body) == {"query_responses": [CHAT]}
    assert headers["Authorization"] == "Bearer secret-123"


def test_no_chats_need_no_server():
    assert score("http://127.0.0.1:1", chats=()) == []


def test_health():
    with serving((200, {"status": "ok", "version": "v1"}, {})) as (url, _):
        assert asyncio.run(ScorerClient(url, version="v1").health())["status"] == "ok"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status):
    with serving((status, {"error": {"message": "busy"}}, {}), ok()) as (url, requests):
        assert score(url) == [0.25]
    assert len(requests) == 2


def test_it_waits_as_long_as_the_server_asks():
    began = time.monotonic()
    with serving((429, {}, {"Retry-After": "1"}), ok()) as (url, _):
        assert score(url) == [0.25]
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_what_cannot_pass_is_not_tried_again(status):
    with (
        serving((status, {"error": {"message": "no, because"}}, {})) as (url, requests),
        pytest.raises(ScorerRefused, match=f"{status}: no, because"),
    ):
        score(url)
    assert len(requests) == 1


def test_a_server_that_is_down_costs_the_deadline_and_no_more():
    with serving(ok()) as (url, _):
        pass
    began = time.monotonic()
    with pytest.raises(ScorerUnavailable, match=r"not respond within 0.3 s; last error: .*(refused|Connect)"):
        score(url, deadline=0.3)
    assert time.monotonic() - began < 2


def test_a_server_that_is_slow():
    with serving(lambda handler: time.sleep(2.0)) as (url, _):
        began = time.monotonic()
        with pytest.raises(ScorerUnavailable, match="not respond within 0.2 s"):
            score(url, deadline=0.2)
        assert time.monotonic() - began < 1.9


def test_a_server_that_hangs_up_is_tried_again():
    with serving(lambda handler: handler.connection.close(), ok()) as (url, requests):
        assert score(url) == [0.25]
    assert len(requests) == 2


@pytest.mark.parametrize("said", [{}, {"version": "v2"}, {"version": 7}])
def test_a_server_of_another_version(said):
    with serving(ok(**said)) as (url, _), pytest.raises(WrongScorer, match="but must have v1"):
        score(url, version="v1")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>", b"", b"[0.5]", b'"yes"', b"{}", b'{"result": 0.5}', b'{"result": []}', b'{"result": [0.5, 0.5]}',
        b'{"result": [NaN]}', b'{"result": [Infinity]}', b'{"result": [-0.1]}', b'{"result": [1.0001]}',
        b'{"result": ["0.5"]}', b'{"result": [true]}', b'{"result": [null]}', b'{"result": [[0.5]]}',
        b'{"result": [1' + b"0" * 400 + b"]}", b"[" * 100_000, b"\xff\xfe",
    ],
    ids=range(19),
)  # fmt: skip
def test_nonsense_is_refused(body):
    with serving((200, body, {})) as (url, requests), pytest.raises(BadScores):
        score(url)
    assert len(requests) == 1


def test_an_answer_that_is_too_large():
    with serving((200, b" " * 5000, {})) as (url, _), pytest.raises(BadScores, match="more than 1000 bytes"):
        score(url, max_bytes=1000)


def raw(text):
    """Start a server that responds with raw bytes."""

    def answer(handler):
        handler.wfile.write(text)
        handler.connection.close()

    return answer


def test_chunks_and_bodies_without_a_length():
    body = json.dumps({"result": [0.5]}).encode()
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (body[:5], body[5:])) + b"0\r\n\r\n"
    with serving(raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked)) as (url, _):
        assert score(url) == [0.5]
    with serving(raw(b"HTTP/1.0 200 OK\r\n\r\n" + body)) as (url, _):
        assert score(url) == [0.5]


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n{}",
        *(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + line + b"\r\n{}\r\n0\r\n\r\n"
          for line in (b"-2", b"+2", b"0x2", b"0_2", b" ", b"f" * 5000, b"1")),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2;" + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (5 << 20),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n",
    ],
    ids=range(22),
)  # fmt: skip
def test_what_is_no_http_is_refused(text):
    with serving(raw(text)) as (url, _), pytest.raises(BadScores):
        score(url)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda head, body: b"HTTP/1.1 " + head + b"\r\n\r\n" + body,
            st.sampled_from([
                b"200 OK", b"200 OK\r\nContent-Length: 7", b"200\r\nTransfer-Encoding: chunked", b"500 no", b"999 x",
                b"401 no\r\n:\r\n\xff: \xfe", b"200 OK\r\nContent-Length: 0x10", b"\xb2\xb9\xb3 x",
                b"200 OK\r\nContent-Length: \xb9", b"503 x\r\nRetry-After: \xb9",
            ]),
            st.one_of(st.binary(max_size=40), st.just(b'{"result": [0.5]}'), st.just(b"11\r\n" + b"x" * 40)),
        ),
    )
)  # fmt: skip
def test_no_answer_breaks_the_client(text):
    """Any response leads to a score, an error of the episode, or a retry."""

    async def read():
        client, reader = ScorerClient("http://x"), asyncio.StreamReader(limit=scorer_client.MAX_HEAD)
        reader.feed_data(text)
        reader.feed_eof()
        return client._read(*await client._response(reader))

    with contextlib.suppress(EpisodeError, EOFError, scorer_client._TryAgain):
        assert isinstance(asyncio.run(read()), dict)


def test_every_error_costs_an_episode_and_not_the_run():
    for error in (BadScores, ScorerRefused, ScorerUnavailable, WrongScorer):
        assert issubclass(error, EpisodeError) and error.reason.startswith("scorer")


def test_no_more_connections_than_allowed():
    now, most, lock = [0], [0], threading.Lock()

    def answer(handler):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        text = b'{"result": [0.5]}'
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))

    async def many(url):
        client = ScorerClient(url, connections=3)
        return await asyncio.gather(*(client.score([CHAT]) for _ in range(12)))

    with serving(answer) as (url, _):
        assert asyncio.run(many(url)) == [[0.5]] * 12
    assert 1 < most[0] <= 3


def test_what_the_server_says_is_final_is_not_tried_again():
    with serving((500, {"error": {"message": "damaged"}}, {"X-Should-Retry": "false"})) as (url, requests):
        with pytest.raises(ScorerRefused, match="status 500: damaged"):
            score(url)
        assert len(requests) == 1


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x?a=b"])
def test_urls_that_are_none(url):
    with pytest.raises(ValueError, match="url is"):
        ScorerClient(url)
