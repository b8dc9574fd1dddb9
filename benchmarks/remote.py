r"""Step time with a remote partner by the latency of its endpoint.

    python -m benchmarks.remote                                # negotiation with the embedded model
    python -m benchmarks.remote --latencies=0,1 --steps=5

The endpoint is a server in a thread of this process that answers every request with a fixed offer after the latency.
The partner of `experiments/negotiation.py:multi_learning` plays through it, at most 32 requests at a time. The first
step of every run, which compiles, is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from marl_jax.devices.aot import SharedPrograms
from marl_jax.modes import train
from marl_jax.running.metrics import read_json_lines
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import overrides

TEXT = "Let us share.\nOFFER book=1 hat=0 ball=0"


@contextlib.contextmanager
def endpoint(latency: float) -> Iterator[str]:
    """Run a server that answers after `latency` seconds and yield URL#MODEL."""
    choices = [{"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format, *args):
            """Write no log."""

        def do_GET(self):
            self._send({"data": [{"id": "partner"}]})

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(latency)
            self._send({"model": "partner", "choices": choices})

        def _send(self, value):
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 256

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1#partner"
        server.shutdown()


def measure(latency: float, steps: int, programs: SharedPrograms, stop: GracefulStop) -> dict[str, float]:
    """Return the median seconds and requests of a step."""
    config, _, _ = overrides.resolve("negotiation:multi_learning")
    with endpoint(latency) as place, tempfile.TemporaryDirectory() as folder:
        changes = {"agents.partner": place, "steps": steps, "eval.every": 0, "log.games": 0, "log.progress": False}
        overrides.apply(config, changes)
        train.train_stages(config, Path(folder), stop, programs)
        rows = read_json_lines(Path(folder) / "metrics.jsonl")[1:]
    rollout = statistics.median(row["seconds/rollout"] for row in rows)
    update = statistics.median(row["seconds/update"] for row in rows)
    requests = statistics.median(row["remote/requests"] for row in rows)
    return {"latency": latency, "step": rollout + update, "rollout": rollout, "requests": requests}


def main() -> None:
    """Print a row per latency."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies", default="0,0.1,1", help="latencies in seconds")
    parser.add_argument("--steps", type=int, default=5, help="number of steps per run")
    given = parser.parse_args()
    programs = SharedPrograms()
    with GracefulStop() as stop:
        for latency in map(float, given.latencies.split(",")):
            row = measure(latency, given.steps, programs, stop)
            sys.stdout.write("  ".join(f"{name} {value:.3g}" for name, value in row.items()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
