"""The basics of the HTTP servers: keys, limits, errors, request ids, health, metrics, and a clean stop."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from marl_jax.errors import ConfigError, RunError
from marl_jax.serving.http import app as basics
from marl_jax.serving.http import protocol, server
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys, check_address, is_loopback
from marl_jax.serving.http.prometheus import ServerMetrics
from tests.conftest import examples

ROOT = Path(__file__).resolve().parents[3]
KEY = "k-0123456789"


async def echo(request):
    return JSONResponse({"got": await basics.read_json(request), "owner": basics.owner(request)})


async def sleep(request):
    await asyncio.sleep((await basics.read_json(request))["seconds"])
    return JSONResponse({})


async def fail(request):
    raise OSError("a secret of the server")


async def refuse(request):
    raise ApiError(404, "no such model", param="model", code="model_not_found")


ROUTES = [
    Route("/echo", echo, methods=["POST"]),
    Route("/sleep", sleep, methods=["POST"]),
    Route("/fail", fail, methods=["GET", "POST"]),
    Route("/refuse", refuse),
]


@contextlib.contextmanager
def running(key="", limits=None, routes=ROUTES, **more):
    with server.in_thread(basics.application(routes, keys=Keys.of(key), limits=limits, **more)) as url:
        yield urllib.parse.urlsplit(url).netloc


@pytest.fixture(scope="module")
def address():
    with running(health=lambda: {"model": "tiny"}) as address:
        yield address


def call(address, path, body=None, key="", headers=(), method=None):
    """Send one request and return (status, JSON or text, headers)."""
    connection = http.client.HTTPConnection(address, timeout=20)
    own = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {}), **dict(headers)}
    data = json.dumps(body).encode() if isinstance(body, dict | list) else body
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, data, own)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(text) if is_json else text.decode(), response.headers


def is_error(answer, status, kind="invalid_request_error"):
    """Check that a response is an error in OpenAI's format."""
    error = answer[1]["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert "Traceback" not in error["message"]
    assert (answer[0], error["type"]) == (status, kind), answer
    return True


def test_an_object_is_read_and_answered(address):
    status, answer, headers = call(address, "/echo", {"text": "é"})
    assert (status, answer) == (200, {"got": {"text": "é"}, "owner": None})
    assert headers["x-request-id"].startswith("req-")
    assert call(address, "/echo", {}, headers={"X-Request-Id": "mine-1"})[2]["x-request-id"] == "mine-1"
    assert call(address, "/echo", {}, headers={"X-Request-Id": "a b<c>"})[2]["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"a": NaN}', b"\xff\xfe{}", b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}", b"3"],
)
def test_what_is_no_json_object_is_status_400(address, body):
    assert is_error(call(address, "/echo", body), 400)


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=40))
def test_no_body_breaks_the_server(address, body):
    try:
        expected = 200 if isinstance(json.loads(body), dict) else 400
    except ValueError:
        expected = 400
    status = call(address, "/echo", body)[0]
    assert status == expected or (status == 400 and expected == 200 and b"N" in body)  # NaN is rejected here


@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    st.lists(st.sampled_from(["plain", "chunked", "wrong", "refused"]), min_size=1, max_size=4),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_requests_on_one_connection_are_answered_in_order_however_they_arrive(address, kinds, cuts):
    """Several requests share a packet, or one is split over several packets."""
    data, expected = b"", []
    for i, kind in enumerate(kinds):
        body = b"{" if kind == "wrong" else json.dumps({"number": i}).encode()
        path = b"/refuse" if kind == "refused" else b"/echo"
        data += b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % path
        if kind == "chunked":
            data += b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            data += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        expected.append({"wrong": 400, "refused": 405}.get(kind, i))
    places = sorted({0, len(data), *(int(cut * len(data)) for cut in cuts)})
    found = []
    with socket.create_connection(address.split(":")) as client:
        client.settimeout(10)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in itertools.pairwise(places):
            client.sendall(data[begin:end])
            time.sleep(0.002)
        stream = client.makefile("rb")
        for _ in kinds:
            status = int(stream.readline().split()[1])
            headers = http.client.parse_headers(stream)
            answer = json.loads(stream.read(int(headers["content-length"])))
            found.append(answer["got"]["number"] if status == 200 else status)
    assert found == expected


def test_other_kinds_of_bodies_are_refused(address):
    """A web page can send text/plain to this machine without a preflight request; it must not be read as JSON."""
    assert is_error(call(address, "/echo", b"{}", headers={"Content-Type": "text/plain"}), 415)
    assert is_error(call(address, "/echo", b"{}", headers={"Content-Encoding": "gzip"}), 415)


def test_errors_have_the_shape_of_openai(address):
    assert is_error(call(address, "/nowhere"), 404, "not_found_error")
    assert is_error(call(address, "/echo", method="GET"), 405)
    answer = call(address, "/refuse")
    assert is_error(answer, 404, "not_found_error") and answer[1]["error"]["param"] == "model"


def test_a_failing_handler_is_logged_and_tells_the_client_nothing(address, caplog):
    answer = call(address, "/fail", headers={"X-Request-Id": "find-me"})
    assert is_error(answer, 500, "server_error")
    assert "secret" not in json.dumps(answer[1]) and "find-me" in answer[1]["error"]["message"]
    assert "find-me" in caplog.text and "a secret of the server" in caplog.text


def test_a_page_under_another_name_is_refused_without_a_key(address):
    assert is_error(call(address, "/echo", {}, headers={"Host": "evil.example"}), 403, "permission_error")
    assert call(address, "/echo", {}, headers={"Host": "localhost:99"})[0] == 200
    assert call(address, "/echo", {}, headers={"Host": "[::1]:99"})[0] == 200


def test_keys():
    with running(KEY) as address:
        assert is_error(call(address, "/echo", {}), 401, "authentication_error")
        assert is_error(call(address, "/echo", {}, key=KEY + "x"), 401, "authentication_error")
        assert call(address, "/echo", {}, headers={"Authorization": f"Basic {KEY}"})[0] == 401
        assert call(address, "/echo", {}, key=KEY)[1]["owner"] == "admin"
        assert call(address, "/echo", {}, key=KEY, headers={"Host": "model.example"})[0] == 200
        assert call(address, "/health")[0] == 200, "open: load balancers have no key"
        assert call(address, "/metrics")[0] == 401
        assert call(address, "/metrics", key=KEY)[0] == 200


def test_keys_come_and_go():
    keys = Keys()
    keys.add(KEY, ("session", 3))
    assert keys.owner(b"bearer " + KEY.encode()) == ("session", 3)
    keys.remove(KEY)
    with pytest.raises(ApiError):
        keys.owner(b"Bearer " + KEY.encode())
    for bad in ("short", "with space in it", "é" * 12):
        with pytest.raises(ConfigError):
            keys.add(bad, None)


def test_only_this_machine_is_served_without_a_key():
    assert is_loopback("localhost") and is_loopback("127.8.8.8") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("localhost.evil.example") and not is_loopback("")
    check_address("0.0.0.0", Keys.of(KEY))
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(ConfigError, match="which other machines can reach"):
            check_address(host, Keys.of(""))


def test_a_body_beyond_the_limit_is_status_413_also_without_a_length():
    with running(limits=Limits(body_bytes=1000)) as address:
        assert call(address, "/echo", {"a": "b" * 900})[0] == 200
        assert is_error(call(address, "/echo", {"a": "b" * 200_000}), 413)
        chunks = (b" " * 100 for _ in range(30))  # sent chunked
        assert is_error(call(address, "/echo", chunks, method="POST"), 413)


def test_too_many_at_once_are_asked_to_come_again():
    with running(limits=Limits(concurrent=2, retry_after=7)) as address, ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(call, address, "/sleep", {"seconds": 2.0}) for _ in range(2)]
        while "http_requests_under_way 2\n" not in call(address, "/metrics")[1]:
            assert not any(future.done() for future in slow)
        answer = call(address, "/echo", {})
        assert is_error(answer, 429, "rate_limit_error") and answer[2]["retry-after"] == "7"
        assert call(address, "/health")[0] == 200, "the server is well"
        assert [future.result()[0] for future in slow] == [200, 200]
        assert call(address, "/echo", {})[0] == 200


def test_time_limits():
    with running(limits=Limits(seconds=0.2, body_seconds=0.3)) as address:
        assert is_error(call(address, "/sleep", {"seconds": 5}), 504, "server_error")
    with running(limits=Limits(body_seconds=0.2)) as address, socket.create_connection(address.split(":")) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: 10\r\n\r\n{")
        assert b" 408 " in client.recv(4096).splitlines()[0]


def test_connections_without_a_request_are_closed(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    with running() as address, socket.create_connection(address.split(":")) as client:
        client.settimeout(10)
        client.sendall(b"POST /echo HTTP/1.1\r\n")  # and never the rest
        began = time.monotonic()
        assert client.recv(100) == b"" and time.monotonic() - began < 5


@pytest.mark.parametrize("line", [b"x: y\r\n" * 1000, b"y" * 8000], ids=["many headers", "a long one"])
def test_a_head_that_does_not_end_is_refused(line):
    with running() as address, socket.create_connection(address.split(":")) as client:
        client.settimeout(10)
        client.sendall(b"POST /echo HTTP/1.1\r\nx: ")
        with contextlib.suppress(OSError):  # closed while more is sent
            for _ in range(1 + protocol.MOST_HEAD // len(line)):
                client.sendall(line)
                time.sleep(0.005)
        assert b" 400 " in client.recv(4096).splitlines()[0]


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: localhost\n\n\x00",
    ],
    ids=["two lengths", "length and chunks", "a signed length", "a space before the colon", "no carriage returns"],
)
def test_requests_that_could_be_read_in_two_ways_are_refused(address, request_text):
    with socket.create_connection(address.split(":")) as client:
        client.settimeout(10)
        client.sendall(request_text)
        assert b" 400 " in client.recv(4096).splitlines()[0]


def test_work_is_cancelled_when_the_client_hangs_up():
    cancelled = threading.Event()

    async def work(request):
        async def forever():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        await basics.read_json(request)
        await basics.unless_gone(request, forever())

    metrics = ServerMetrics()
    with running(routes=[Route("/work", work, methods=["POST"])], metrics=metrics) as address:
        with pytest.raises(TimeoutError):
            connection = http.client.HTTPConnection(address, timeout=0.3)
            connection.request("POST", "/work", b"{}", {"Content-Type": "application/json"})
            connection.getresponse()
        connection.close()
        assert cancelled.wait(5)
    assert metrics.value("http_requests_total", path="/work", status=499) == 1


def test_a_hang_up_is_heard_within_its_context_also_after_it_happened():
    heard, hang_up = [], protocol.HangUp()
    with hang_up.calls(lambda: heard.append("before")):
        pass
    with hang_up.calls(lambda: heard.append("within")):
        hang_up.happen()
    with hang_up.calls(lambda: heard.append("after")):
        pass
    assert heard == ["within", "after"] and hang_up.happened


def test_health_and_metrics():
    state = {"status": "ok", "model": "tiny"}
    with running(health=lambda: state) as address:
        assert call(address, "/health")[:2] == (200, {"status": "ok", "model": "tiny"})
        state["status"] = "draining"
        assert call(address, "/health")[0] == 503
        call(address, "/echo", {})
        call(address, "/wp-admin")
        call(address, "/.env")
        text = call(address, "/metrics")[1]
    assert 'http_requests_total{path="/echo",status="200"} 1' in text
    assert 'http_requests_total{path="other",status="404"} 2' in text and "wp-admin" not in text
    assert 'http_request_seconds_bucket{path="/echo",le="+Inf"} 1' in text


def test_metrics_in_the_format_of_prometheus():
    metrics = ServerMetrics()
    metrics.count("tokens_total", "Tokens.\nSampled.", 3, name='a"b\\c\n')
    metrics.gauge("rows", "Rows.", lambda: 0.5)
    for value in (0.1, 1.0, 7.0):
        metrics.observe("wait", "Seconds.", value, (1.0, 5.0))
    assert (
        metrics.text()
        == textwrap.dedent(r"""
        # HELP tokens_total Tokens.\nSampled.
        # TYPE tokens_total counter
        tokens_total{name="a\"b\\c\n"} 3
        # HELP rows Rows.
        # TYPE rows gauge
        rows 0.5
        # HELP wait Seconds.
        # TYPE wait histogram
        wait_bucket{le="1"} 2
        wait_bucket{le="5"} 2
        wait_bucket{le="+Inf"} 3
        wait_sum 8.1
        wait_count 3
        """).lstrip()
    )
    with pytest.raises(ValueError, match="is a gauge"):
        metrics.count("rows", "Rows.")


def test_a_port_that_is_taken_and_an_application_that_does_not_start():
    with running() as address, pytest.raises(RunError, match="cannot listen on 127.0.0.1"):
        server.listen("127.0.0.1", int(address.split(":")[1]))

    @contextlib.asynccontextmanager
    async def broken(app):
        raise RunError("no weights")
        yield

    with pytest.raises(RunError, match="no weights"), running(lifespan=broken):
        pass


def test_sigterm_answers_what_is_under_way_and_ends_with_status_0(tmp_path):
    script = """
        import sys
        sys.path.insert(0, "tests/marl_jax/serving")
        from test_http import ROUTES, Keys, basics, server
        app = basics.application(ROUTES, keys=Keys.of(""))
        server.serve(app, "127.0.0.1", 0, on_ready=lambda url: print(url, flush=True))
        print("stopped", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        address = urllib.parse.urlsplit(process.stdout.readline().strip()).netloc
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(call, address, "/sleep", {"seconds": 1.0})
            time.sleep(0.4)
            process.send_signal(signal.SIGTERM)
            assert slow.result()[0] == 200
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
