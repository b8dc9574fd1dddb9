"""A scripted OpenAI-compatible server in a thread of the test process."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclasses.dataclass
class FakeOpenAI:
    """What the server does, which a test may change at any time.

    Attributes:
        reply: Maps the body of a request to the text of the completion.
        fail: Returns (status, headers) of a request that fails, given its number, or None.
        hang: Returns whether a request gets no response until the end of the test, given its body.
        model: Model in responses; None repeats that of the request.
        fingerprint: `system_fingerprint` of responses.
        usage: Tokens of the prompt and of each completion; None leaves usage out.
        served: Names in the list of models; None for a server without a list.
        key: Key that requests must have.
        asked: Bodies of all requests for completions.
        url: Address of the API.
    """

    reply: Callable[[dict], str] = lambda body: "A short reply."
    fail: Callable[[int], tuple[int, dict] | None] = lambda number: None
    hang: Callable[[dict], bool] = lambda body: False
    model: str | None = None
    fingerprint: str = "v0"
    usage: tuple[int, int] | None = (10, 5)
    served: tuple[str, ...] | None = ("m",)
    key: str = ""
    asked: list[dict] = dataclasses.field(default_factory=list)
    url: str = ""
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

    @property
    def place(self) -> str:
        """The model `m` of this server, as in configs."""
        return f"{self.url}#m"

    def answer(self, body: dict) -> dict[str, Any]:
        """Return the response to a request for completions."""
        n = body.get("n", 1)
        message = {"role": "assistant", "content": self.reply(body)}
        choices = [{"index": k, "message": message, "finish_reason": "stop"} for k in range(n)]
        answer = {"model": self.model or body["model"], "system_fingerprint": self.fingerprint, "choices": choices}
        if self.usage is not None:
            answer["usage"] = {"prompt_tokens": self.usage[0], "completion_tokens": n * self.usage[1]}
        return answer


@contextlib.contextmanager
def fake_openai(**settings: Any) -> Iterator[FakeOpenAI]:
    """Run a server; `settings` are attributes of `FakeOpenAI`."""
    fake = FakeOpenAI(**settings)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def send(self, status, value, headers=()):
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, text in dict(headers).items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def refuses(self):
            given = self.headers.get("Authorization", "")
            if fake.key and given != f"Bearer {fake.key}":
                self.send(401, {"error": {"message": f"wrong key in {given!r}"}})
                return True
            return False

        def do_GET(self):
            if self.refuses():
                return
            if fake.served is None or self.path != "/v1/models":
                self.send(404, {"error": {"message": "no such page"}})
            else:
                self.send(200, {"object": "list", "data": [{"id": name} for name in fake.served]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.refuses():
                return
            fake.asked.append(body)
            if fake.hang(body):
                fake.ended.wait()
                return
            failure = fake.fail(len(fake.asked) - 1)
            if failure is not None:
                self.send(failure[0], {"error": {"message": "as the test wants"}}, failure[1])
            else:
                self.send(200, fake.answer(body))

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 256  # many connections at once

    server = Server(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
