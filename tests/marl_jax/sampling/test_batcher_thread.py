"""The batcher thread: requests from threads and coroutines, and no future that is never resolved."""

import asyncio
import dataclasses
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest

from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherClosed, BatcherFailed, BatcherThread
from marl_jax.sampling.requests import Usage
from marl_jax.sampling.settings import Sampling
from tests.marl_jax.tiny_engine import make_engine, model_and_params, random_prompts

LENGTH = 48
PROMPTS = random_prompts([5, 12, 1, 20, 7, 3])
SECONDS = 60  # longer than any test here takes


class Manual:
    """A batcher whose chunks wait for `go`; each chunk completes the oldest request with its prompt."""

    n_policies = 2

    def __init__(self):
        self.go, self.entered = threading.Semaphore(0), threading.Semaphore(0)
        self.open, self.done, self.steps, self.updating, self.error = {}, [], 0, set(), None
        self.cancelled, self.deadlines, self.polls = [], {}, 0
        self.began, self.closed = 0, False

    def close(self):
        self.closed = True

    def check_request(self, ids, sampling, policy, n):
        if policy:
            raise ValueError("policy is 1")

    def check_weights(self, policy, weights):
        pass

    def submit(self, ids, sampling, policy, n, deadline):
        number = len(self.deadlines) + 1
        self.open[number] = ids
        self.deadlines[number] = deadline
        return number

    def set_weights(self, policy, weights, version):
        self.updating = {policy} if self.open else set()

    def cancel(self, number):
        if self.open.pop(number, None) is not None:
            self.cancelled.append(number)
            self.done.append((number, "cancelled"))

    def begin(self, device):
        self.began += 1

    def catch_up(self):
        pass

    def finish(self):
        self.entered.release()
        self.go.acquire()
        self.steps += 1
        if self.error:
            raise self.error
        if self.open:
            number = min(self.open)
            self.done.append((number, self.open.pop(number)))
        if not self.open:
            self.updating = set()

    def expire(self):
        self.polls += 1
        for number, deadline in self.deadlines.items():
            if number in self.open and deadline is not None and time.monotonic() >= deadline:
                self.open.pop(number)
                self.done.append((number, "deadline"))

    def results(self):
        done, self.done = self.done, []
        return done

    busy = property(lambda self: bool(self.open or self.updating))
    usage = property(lambda self: Usage(generated=self.steps, versions=(0, 0)))
    next_deadline = property(
        lambda self: min((d for n, d in self.deadlines.items() if n in self.open and d is not None), default=None)
    )


@pytest.fixture
def manual():
    """Return a batcher that is stepped by hand, and its thread."""
    batcher = Manual()
    thread = BatcherThread(batcher)
    yield batcher, thread
    batcher.go.release(1000)
    thread.close()


@pytest.fixture(scope="module")
def engine():
    return make_engine(with_adapters=True)


@pytest.fixture(scope="module")
def sampler(engine):
    with BatcherThread(Batcher(engine, rows=4, max_length=LENGTH, chunk=4, fixed_shapes=True)) as thread:
        yield thread


def alone(engine, prompt, sampling, policy=0):
    answers, _ = engine.generate(engine.prefill([prompt], slots=LENGTH, adapter_ids=[policy]), [sampling])
    return answers[0]


def wait_for(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


# Real completions


@pytest.mark.nightly
def test_threads_and_coroutines_get_what_the_engine_gives(engine, sampler):
    """Many concurrent requests in any order, of all policies: each as if alone, and bit-equal when repeated."""
    samplings = [Sampling(max_new_tokens=3 + i, seed=i) for i in range(12)]
    asked = [(PROMPTS[i % 6], samplings[i], i % 3) for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        futures = list(pool.map(lambda request: sampler.ask(*request), asked))
    first = [f.result(SECONDS)[0] for f in futures]

    async def everyone():
        return await asyncio.gather(*(sampler.answer(*request) for request in reversed(asked)))

    second = [answers[0] for answers in reversed(asyncio.run(everyone()))]
    for (prompt, sampling, policy), one, two in zip(asked, first, second, strict=True):
        theirs = alone(engine, prompt, sampling, policy)
        assert one.tokens.tolist() == two.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(one.logps, theirs.logps, atol=1e-5)
        assert one.logps.tobytes() == two.logps.tobytes()
    sampler.drain(SECONDS)
    assert (sampler.usage.running, sampler.usage.waiting) == (0, 0)
    assert sampler.usage.generated == 2 * sum(s.max_new_tokens for s in samplings)


def test_weights_are_in_place_when_the_call_returns():
    new = model_and_params(seed=1)[1]
    fresh, sampling = make_engine(params=new), Sampling(max_new_tokens=12, seed=3)
    engine = make_engine()
    old = alone(engine, PROMPTS[0], sampling)
    with BatcherThread(Batcher(engine, rows=2, max_length=LENGTH, chunk=2)) as thread:
        before = thread.ask(PROMPTS[0], sampling)
        wait_for(lambda: thread.usage.running)
        thread.set_weights(0, new, version=2, timeout=SECONDS)
        assert before.done(), "it had a row"
        after = thread.ask(PROMPTS[0], sampling).result(SECONDS)[0]
        assert before.result()[0].tokens.tolist() == old.tokens.tolist()
        assert after.tokens.tolist() == alone(fresh, PROMPTS[0], sampling).tokens.tolist()
        assert before.result()[0].versions.tolist() == [0] * 12 and after.versions.tolist() == [2] * 12
        with pytest.raises(ValueError, match="weights of policy 0"):
            thread.set_weights(0, {"embed": new["embed"]}, 3)
        assert thread.usage.versions == (2,)


def test_cancel_and_deadline_of_real_requests(engine):
    long = Sampling(max_new_tokens=40, temperature=0)
    with BatcherThread(Batcher(engine, rows=1, max_length=LENGTH, chunk=1)) as thread:
        thread.pause(SECONDS)
        futures = [thread.ask(PROMPTS[0], long) for _ in range(3)]
        futures.append(thread.ask(PROMPTS[0], long, deadline=time.monotonic() + 0.05))
        thread.cancel(futures[0])
        assert futures[0].result(SECONDS)[0].finish == "cancelled", "also while it is paused"
        assert futures[3].result(SECONDS)[0].finish == "deadline"
        assert futures[1].cancel(), "nobody wants the answer any more"
        thread.resume()
        assert futures[2].result(SECONDS)[0].finish == "length"
        thread.drain(SECONDS)
        assert thread.usage.generated == 40, "the others had no row"


def test_requests_that_can_never_fit_are_refused_at_once(sampler):
    with pytest.raises(ValueError, match="exceeds max_length 48"):
        sampler.ask([1] * 40, Sampling(max_new_tokens=9))
    with pytest.raises(ValueError, match="exceeds max_length 48"):
        asyncio.run(sampler.answer([1] * 40, Sampling(max_new_tokens=9)))
    assert len(sampler.ask([1], Sampling(max_new_tokens=1)).result(SECONDS)) == 1, "and the thread continues"


# The event loop, with a batcher that is stepped by hand


def test_a_chunk_does_not_block_the_event_loop(manual):
    """The step ends only when the loop allows it."""
    batcher, thread = manual

    async def main():
        answer = asyncio.ensure_future(thread.answer([3]))
        while not batcher.entered.acquire(blocking=False):
            await asyncio.sleep(0.001)
        assert not answer.done()
        batcher.go.release()
        return await asyncio.wait_for(answer, SECONDS)

    assert asyncio.run(main()) == [3]


def test_a_coroutine_that_gives_up_frees_its_rows(manual):
    batcher, thread = manual

    async def main():
        thread.pause(SECONDS)  # so that one chunk has both
        tasks = [asyncio.ensure_future(thread.answer([i])) for i in (3, 4)]
        await asyncio.sleep(0)  # both ask
        thread.resume()
        while not batcher.entered.acquire(blocking=False):
            await asyncio.sleep(0.001)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        batcher.go.release()
        return await tasks[0]

    assert asyncio.run(main()) == [3]
    thread.drain(SECONDS)
    assert (batcher.cancelled, batcher.steps) == ([2], 1)


def test_it_sleeps_while_there_is_nothing_to_do(manual):
    batcher, thread = manual
    batcher.go.release(5)
    assert thread.ask([1]).result(SECONDS) == [1]
    thread.drain(SECONDS)
    steps, polls = batcher.steps, batcher.polls
    clock = time.pthread_getcpuclockid(thread._thread.ident)
    before = time.clock_gettime(clock)
    time.sleep(0.2)
    assert (batcher.steps, batcher.polls) == (steps, polls)
    assert time.clock_gettime(clock) - before < 0.01


def test_answers_leave_and_requests_come_while_the_device_decodes(manual):
    """The next chunk has been started by then and has not ended."""
    batcher, thread = manual
    thread.pause(SECONDS)
    first, second = thread.ask([1]), thread.ask([2])
    thread.resume()
    assert batcher.entered.acquire(timeout=SECONDS)
    third = thread.ask([3])
    batcher.go.release()
    assert first.result(SECONDS) == [1]
    assert (batcher.began, batcher.steps) == (2, 1)
    wait_for(lambda: not thread._commands)
    assert not second.done() and batcher.steps == 1, "the third has been taken beside the second's chunk"
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(thread.pause, SECONDS)
        wait_for(lambda: thread._commands)
        assert batcher.entered.acquire(timeout=SECONDS)
        assert not pausing.done(), "something is being decoded"
        batcher.go.release()
        pausing.result(SECONDS)
    assert second.result(SECONDS) == [2] and not third.done(), "the chunk in progress has ended"
    thread.resume()
    batcher.go.release()
    assert third.result(SECONDS) == [3]


def test_asking_on_and_on_does_not_keep_the_device_waiting(manual, monkeypatch):
    """Every request that is accepted submits another one."""
    batcher, thread = manual
    submit, asked = batcher.submit, []

    def submit_and_ask(*args):
        if len(asked) < 50:
            asked.append(thread.ask([2]))
        return submit(*args)

    monkeypatch.setattr(batcher, "submit", submit_and_ask)
    thread.ask([1])
    assert batcher.entered.acquire(timeout=SECONDS)
    assert len(asked) < 5


def test_drain_waits_for_what_was_asked_before(manual):
    batcher, thread = manual
    first = thread.ask([1])
    with ThreadPoolExecutor(1) as pool:
        assert batcher.entered.acquire(timeout=SECONDS)
        drained = pool.submit(thread.drain, SECONDS)
        wait_for(lambda: thread._commands)
        later = thread.ask([2])
        assert not drained.done()
        batcher.go.release()
        drained.result(SECONDS)
        assert first.done() and not later.done()
        batcher.go.release()
        assert later.result(SECONDS) == [2]


def test_weights_wait_until_the_batcher_has_taken_them(manual):
    batcher, thread = manual
    thread.ask([1])
    assert batcher.entered.acquire(timeout=SECONDS)
    another = thread.ask([2])
    swapped = thread.submit_weights(0, {}, 1)
    batcher.go.release()
    assert batcher.entered.acquire(timeout=SECONDS)
    assert batcher.updating == {0} and not swapped.done()
    batcher.go.release()
    assert swapped.result(SECONDS) is None and another.result(SECONDS) == [2]


def test_pause_keeps_requests(manual):
    batcher, thread = manual
    thread.pause(SECONDS)
    future = thread.ask([1])
    batcher.go.release()
    with pytest.raises(TimeoutError):
        thread.drain(timeout=0.05)
    assert batcher.steps == 0 and not future.done()
    thread.resume()
    assert future.result(SECONDS) == [1]


def test_an_exception_in_the_thread_reaches_everyone(manual):
    """Waiting callers, callers with a queued command, and all later ones."""
    batcher, thread = manual
    batcher.error = OSError("no memory")
    first = thread.ask([1])
    assert batcher.entered.acquire(timeout=SECONDS)
    waiting = [first, thread.ask([2]), thread.submit_weights(0, {}, 1)]
    batcher.go.release()
    for future in waiting:
        with pytest.raises(BatcherFailed, match="OSError: no memory") as found:
            future.result(SECONDS)
        assert found.value.__cause__ is batcher.error
    thread._thread.join(SECONDS)
    for call in (lambda: thread.ask([3]), thread.drain, thread.pause, lambda: thread.set_weights(0, {}, 1)):
        with pytest.raises(BatcherFailed, match="no memory"):
            call()
    thread.close()
    thread.close()


def test_a_command_that_raises_fails_its_own_future_too(manual, monkeypatch):
    batcher, thread = manual

    def broken(*_):
        raise KeyError("layers")

    monkeypatch.setattr(batcher, "set_weights", broken)
    with pytest.raises(BatcherFailed, match="KeyError: 'layers'"):
        thread.set_weights(0, {}, 1, timeout=SECONDS)


def test_closing_with_open_requests(manual):
    """The current chunk is finished; requests that are still open raise."""
    batcher, thread = manual
    futures = [thread.ask([i]) for i in range(3)]
    assert batcher.entered.acquire(timeout=SECONDS)
    futures[2].cancel()
    threading.Timer(0.05, batcher.go.release).start()
    thread.close()
    assert not thread._thread.is_alive()
    assert futures[0].result(0) == [0], "its chunk was in progress"
    with pytest.raises(BatcherClosed, match="was closed"):
        futures[1].result(0)
    with pytest.raises(CancelledError):
        futures[2].result(0)
    with pytest.raises(BatcherClosed):
        thread.ask([1])
    thread.close()


def test_the_thread_cannot_wait_for_itself(manual):
    batcher, thread = manual
    found = []
    future = thread.ask([1])

    def callback(_):
        with pytest.raises(RuntimeError, match="cannot wait for itself") as error:
            thread.drain()
        found.append(error)

    future.add_done_callback(callback)
    batcher.go.release()
    wait_for(lambda: found)


@pytest.mark.nightly
def test_the_interpreter_ends_while_it_decodes():
    """A thread that was not closed neither keeps the program from exiting nor crashes it."""
    code = """
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from tests.marl_jax.tiny_engine import make_engine
thread = BatcherThread(Batcher(make_engine(), rows=2, max_length=64, chunk=1))
thread.ask([1, 2], Sampling(max_new_tokens=2)).result()
for _ in range(1000):
    thread.ask([1, 2], Sampling(max_new_tokens=60))
print("asked")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "asked\n"), done.stderr


def test_usage_is_a_copy(sampler):
    before = dataclasses.replace(sampler.usage)
    usage = sampler.usage
    sampler.ask([1], Sampling(max_new_tokens=2)).result(SECONDS)
    sampler.drain(SECONDS)
    assert usage == before and sampler.usage.generated == before.generated + 2
