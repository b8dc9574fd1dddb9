"""New weights during streams: the programs that run between two pieces of a stream are counted."""

import contextlib
import itertools
import json
import math
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from tests.marl_jax.fake_engine import FakeEngine
from tests.marl_jax.tiny_host import merging_tokenizer

CHUNK, BUDGET, LINES = 3, 30, 8  # LINES is the number of rows that one program prefills
UPDATE_AT = 4  # number of chunks before the new weights arrive


class Logged(FakeEngine):
    """An engine that logs its calls and receives an update while it decodes a certain chunk."""

    def __init__(self):
        super().__init__(policies=1)
        self.log, self.chunks, self.update = [], 0, lambda: None

    def set_weights(self, policy, weights, version):
        super().set_weights(policy, weights, version)
        self.log.append("update")

    def _read_lines(self, weights, pages, lines):
        self.log.append("read")
        return super()._read_lines(weights, pages, lines)

    def _decode_rows(self, weights, pages, rows, steps):
        self.chunks += 1
        if self.chunks == UPDATE_AT:
            self.update()
        return super()._decode_rows(weights, pages, rows, steps)


class LoggedBatcher(Batcher):
    """A batcher that logs the end of a chunk, which starts before or after the previous tokens are shown."""

    def finish(self):
        before = self.usage.slots
        super().finish()
        if self.usage.slots > before:
            self.engine.log.append("decode")


class LoggedThread(BatcherThread):
    """A thread that logs which tokens were shown, and their version."""

    def ask(self, ids, sampling=None, policy=0, n=1, deadline=None, on_tokens=None):
        def shown(k, new):
            self.batchers[0].engine.log.append((sampling.seed, int(new.versions[-1])))
            on_tokens(k, new)

        return super().ask(ids, sampling, policy, n, deadline, shown)


def stream(url, seed):
    body = {"model": "one", "prompt": [seed % 90 + 1] * 20, "seed": seed, "max_tokens": BUDGET, "stream": True}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return response.read().endswith(b"data: [DONE]\n\n")


@contextlib.contextmanager
def serving(in_flight):
    """Yield (engine, sampler, URL)."""
    engine, tokenizer = Logged(), merging_tokenizer()
    batcher = LoggedBatcher(
        engine, rows=16, max_length=64, chunk=CHUNK, tokenizer=tokenizer, in_flight_updates=in_flight
    )
    with LoggedThread(batcher) as sampler:
        speaker = Speaker(sampler, tokenizer, Sampling(max_new_tokens=BUDGET), 64)
        with in_thread(Endpoint({"one": ServedModel.of("one", speaker)}).application()) as url:
            yield engine, sampler, url


def gaps(log, seed):
    """Return the programs between consecutive pieces of a stream."""
    places = [i for i, event in enumerate(log) if isinstance(event, tuple) and event[0] == seed]
    return [[event for event in log[a + 1 : b] if isinstance(event, str)] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("streams", [1, 9, 12])  # of 9, one waits for a chunk: few do not stall many
@pytest.mark.parametrize("in_flight", [True, False])
def test_an_update_stalls_a_stream_by_reading_again_and_a_chunk_at_most(in_flight, streams):
    with serving(in_flight) as (engine, sampler, url), ThreadPoolExecutor(streams) as pool:
        engine.update = lambda: sampler.submit_weights(0, {}, version=1)
        sampler.pause()  # so that all streams begin together
        ends = [pool.submit(stream, url, seed) for seed in range(1, streams + 1)]
        while len(sampler._answers) < streams:
            assert not any(end.done() for end in ends), ends
            time.sleep(0.01)
        sampler.resume()
        assert all(end.result() for end in ends)
        sampler.drain()
    log = engine.log
    assert log.count("update") == 1
    if not in_flight:  # the weights wait for the last stream
        for seed in range(1, streams + 1):
            assert {*map(tuple, gaps(log, seed))} <= {("decode",), *[("decode", "read")] * (streams == 9)}
        assert log[-1] == "update"
        return
    reads = math.ceil(streams / LINES)  # every context is shorter than a line
    for seed in range(1, streams + 1):
        found = gaps(log, seed)
        (stalled,) = [gap for gap in found if "update" in gap]
        others = {tuple(gap) for gap in found if gap is not stalled}
        assert others <= {("decode",), *[("decode", "read"), ("decode", "read", "decode")] * (streams == 9)}
        assert stalled.count("read") <= reads and stalled.count("decode") <= 1 + (streams == 9), stalled
        versions = [event[1] for event in log if isinstance(event, tuple) and event[0] == seed]
        assert versions == sorted(versions) and versions[0] == 0 and versions[-1] == 1
    chunks = math.ceil(BUDGET / CHUNK)
    assert chunks <= log.count("decode") <= chunks + 2 * (streams == 9)  # at the start, and after the update
    assert log[log.index("update") :].count("read") == reads
