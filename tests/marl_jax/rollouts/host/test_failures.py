"""What goes wrong in an episode costs that episode: it is counted, and leaves nothing in the samples."""

import asyncio
import contextlib
import signal
import sys
import time

import numpy as np
import pytest

from envs.tasks import workers
from envs.tasks.replies import CallFailed, CallTimeout
from envs.tasks.task import Outcome
from marl_jax.errors import RunError
from marl_jax.rollouts.host.conversation import SamplerError
from marl_jax.rollouts.host.journal import JournalError
from marl_jax.rollouts.host.watchdog import Watchdog
from marl_jax.sampling import loop_futures
from marl_jax.sampling.compiling import CompileClock
from tests.envs.tasks import verifiers
from tests.marl_jax.tiny_host import FakeSampler, Talk, answers_of, assert_equal_samples, conversation, make_rollout

BAD = "train 3 ab"


def spoiled(bad):
    """`conversation`, but for one example of seven, where `bad` happens after a first answer."""

    async def play(ask, example):
        if example == BAD:
            await ask.chat(0).say("and then")
            return await bad(ask)
        return await conversation(ask, example)

    return play


async def raises(ask):
    raise LookupError("no such page")


async def hangs(ask):
    await asyncio.Event().wait()


async def hangs_and_will_not_be_cancelled(ask):
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def sleeps_in_the_loop(ask):
    time.sleep(3600)


async def computes_in_the_loop(ask):
    while True:
        pass


async def blocks_beside_itself(ask):
    await asyncio.gather(sleeps_in_the_loop(ask), asyncio.sleep(0))


async def returns_none(ask):
    return None


async def returns_nonsense(ask):
    return Outcome(success=7.5)


async def returns_nan(ask):
    return Outcome(True, {"x": float("nan")})


async def pays_nan(ask):
    (await ask.chat(0).say("x")).reward(team=float("nan"))
    return Outcome(1)


async def exits(ask):
    sys.exit("enough")


async def cancels_itself(ask):
    asyncio.current_task().cancel()
    await asyncio.sleep(1)


async def misuses(ask):
    chat = ask.chat(0)
    await chat.say("x", n=2)
    await chat.say("y")


async def heats(ask):
    await ask.chat(0).say("x", sampling={"temperature": 2.0})


async def asks_nobody(ask):
    ask.chat(2)


async def talks_too_much(ask):
    await ask.chat(0).say("long " * 1000)


async def calls_what_fails(ask):
    await ask.verify(verifiers.fail)


async def calls_what_hangs(ask):
    await ask.verify(verifiers.spin, limit=0.1)


async def records_twice_at_once(ask):
    await asyncio.gather(ask.record("judge", asyncio.sleep(0.1)), ask.record("judge", asyncio.sleep(0.1)))


async def records_no_json(ask):
    async def judge():
        return {1, 2}

    await ask.record("judge", judge())


CASES = [
    (raises, "error"), (hangs, "timeout"), (hangs_and_will_not_be_cancelled, "timeout"),
    (sleeps_in_the_loop, "blocked"), (computes_in_the_loop, "blocked"), (blocks_beside_itself, "blocked"),
    (returns_none, "nonsense"), (returns_nonsense, "nonsense"), (returns_nan, "nonsense"), (pays_nan, "misuse"),
    (exits, "error"), (cancels_itself, "error"), (misuses, "misuse"), (heats, "misuse"), (asks_nobody, "misuse"),
    (talks_too_much, "too_long"), (calls_what_fails, "call_failed"), (calls_what_hangs, "call_timeout"),
    (records_twice_at_once, "misuse"), (records_no_json, "call_failed"),
]  # fmt: skip


@pytest.mark.nightly_for("*_in_the_loop-blocked", "hangs*-timeout")
@pytest.mark.parametrize(("bad", "reason"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_a_bad_episode_costs_one_episode(bad, reason, caplog):
    rollout = make_rollout(
        spoiled(bad), n_examples=7, samples=1, time_limit=1 if reason == "timeout" else 60,
        block_limit=1 if reason == "blocked" else 20, concurrency=3,
    )  # fmt: skip
    started = time.monotonic()
    samples, state, metrics = rollout({}, rollout.init(None, None))
    failed = [job.example for job in rollout.jobs(rollout.init(None, None))].index(BAD)
    rollout.close()
    assert time.monotonic() - started < 30
    assert metrics["episodes/finished"] == 6 and metrics["episodes/failed"] == 1
    assert metrics[f"episodes/failed/{reason}"] == 1
    assert set(samples.episode[samples.completion_lengths > 0].tolist()) == set(range(7)) - {failed}
    assert state["step"] == 1 and f"failed ({reason})" in caplog.text

    good = make_rollout(conversation, n_examples=7, samples=1)
    expected, _, _ = good({}, good.init(None, None))
    good.close()
    for n, s, x in answers_of(samples):
        m = n if samples.episode[n, s] < failed else n + 2
        np.testing.assert_array_equal(samples.targets[n, x], expected.targets[m, x])
        np.testing.assert_array_equal(samples.tokens[n, : samples.lengths[n]], expected.tokens[m, : samples.lengths[n]])


class Compiling(FakeSampler):
    """A sampler whose first request waits for a compiler that takes 1.2 seconds, and so do the others."""

    def __init__(self):
        super().__init__()
        self.clock, self.compiled = CompileClock(), None

    async def answer(self, *args, **kwargs):
        if self.compiled is None:
            self.compiled = asyncio.ensure_future(self.compile())
        await asyncio.shield(self.compiled)
        return await super().answer(*args, **kwargs)

    async def compile(self):
        with self.clock.running():
            await asyncio.sleep(1.2)


def test_compiling_does_not_count_against_the_time_limit_of_episodes(caplog):
    sampler = Compiling()
    settings = dict(time_limit=0.3, compile_seconds=lambda: sampler.clock.seconds, n_examples=7, samples=1)
    with contextlib.closing(make_rollout(spoiled(hangs), sampler, **settings)) as rollout:
        started = time.monotonic()
        _, _, metrics = rollout({}, rollout.init(None, None))
    assert metrics["episodes/finished"] == 6 and metrics["episodes/failed/timeout"] == 1, "the one that is slow itself"
    assert time.monotonic() - started > 1.4
    assert "the episode took longer than task.time_limit (0.3 s). Raise it or" in caplog.text


def test_when_every_episode_fails_the_samples_are_empty():
    rollout = make_rollout(lambda ask, example: raises(ask))
    samples, state, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    assert metrics["episodes/failed/error"] == 6 and state["step"] == 1
    assert not samples.completion_lengths.any() and not samples.loss_weights.any() and (samples.policy == -1).all()


def test_an_answer_that_is_not_finite_costs_its_episode():
    class Spoiling(FakeSampler):
        async def answer(self, ids, *args, **kwargs):
            answers = await super().answer(ids, *args, **kwargs)
            if self.requests == 3:
                answers[0] = type(answers[0])(answers[0].tokens, answers[0].logps, "invalid", answers[0].versions)
            return answers

    rollout = make_rollout(conversation, Spoiling())
    _, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    assert metrics["episodes/failed/answer_lost"] == 1 and metrics["episodes/finished"] == 5


def test_a_sampler_that_fails_ends_the_run():
    class Broken(FakeSampler):
        async def answer(self, *args, **kwargs):
            raise RuntimeError("no more memory")

    rollout = make_rollout(conversation, Broken())
    with pytest.raises(SamplerError, match="the sampler failed: RuntimeError: no more memory") as error:
        rollout({}, rollout.init(None, None))
    rollout.close()
    assert isinstance(error.value, RunError)


def test_a_journal_that_cannot_be_written_ends_the_run_even_if_the_task_looks_away(tmp_path, monkeypatch):
    async def careless(ask, example):
        with contextlib.suppress(Exception):
            await ask.verify(verifiers.double, 2)
        return Outcome(1)

    def full(self, text, sync):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("marl_jax.running.line_writer.LineWriter._append", full)
    rollout = make_rollout(careless, journal=tmp_path)
    with pytest.raises(JournalError, match="cannot be written: .* No space left"):
        rollout({}, rollout.init(None, None))
    rollout.close()


def test_a_task_may_catch_a_failed_call_and_continue():
    async def tolerant(ask, example):
        with pytest.raises(CallTimeout):
            await ask.record("slow", asyncio.sleep(60), limit=0.01)
        with pytest.raises(CallFailed, match="KeyError: 'gone'"):
            await ask.verify(verifiers.fail)
        assert await ask.verify(verifiers.double, 21) == 42
        return Outcome(1)

    rollout = make_rollout(tolerant, n_examples=2, samples=1)
    _, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    assert metrics["episodes/finished"] == 2


def test_what_is_left_running_gets_no_more_answers():
    strays = []

    async def forgetful(ask, example):
        async def stray():
            chat = ask.chat(0)
            for _ in range(1000):
                await chat.say("more")

        if not strays:
            strays.append(asyncio.ensure_future(stray()))
            await ask.chat(1).say("x")
        else:
            await asyncio.sleep(0.5)
        return Outcome(1)

    class Slow(FakeSampler):
        async def answer(self, ids, sampling, **kwargs):
            await asyncio.sleep(0.01)
            return await super().answer(ids, sampling, **kwargs)

    rollout = make_rollout(forgetful, Slow(), n_examples=1, samples=1)
    _, state, _ = rollout({}, rollout.init(None, None))
    rollout({}, state)
    rollout.close()
    assert rollout.runner.speakers[0].sampler.requests < 6
    assert "the episode is over" in str(strays[0].exception())


def test_answers_are_cut_to_the_room_that_is_left():
    async def fill(ask, example):
        chat = ask.chat(0)
        while True:
            await chat.say("x" * 20)

    sampler = FakeSampler()
    rollout = make_rollout(fill, sampler, n_examples=1, samples=1, max_length=150)
    _, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    assert metrics["episodes/failed/too_long"] == 1
    rooms = [(150 - len(ids), sampling.max_new_tokens) for ids, sampling, _ in sampler.asked.values()]
    assert rooms and all(asked == min(8, room) for room, asked in rooms)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(n_examples=0), "n_examples is 0"),
        (dict(n_examples=3, process=(0, 2)), "n_examples is 3, but must be a multiple of the number of processes"),
        (dict(samples=0), "samples is 0"),
        (dict(workers=0), "workers is 0"),
    ],
)
def test_settings_without_meaning_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_rollout(conversation, **kwargs)


def test_the_alarm_is_given_back():
    before = signal.getsignal(signal.SIGALRM)
    rollout = make_rollout(conversation)
    one, _, _ = rollout({}, rollout.init(None, None))
    rollout.runner.speakers[0].sampler.asked.clear()
    two, _, _ = rollout({}, rollout.init(None, None))
    rollout.close()
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert_equal_samples(one, two)


def test_a_task_that_asks_for_no_candidates_is_none_for_algorithms_that_compare_them():
    async def one_answer(ask, example):
        await ask.chat(0).say(example)
        return Outcome(1)

    problem = "the task samples one completion per turn, but the algorithm compares 4"
    with contextlib.closing(make_rollout(one_answer, candidates=4)) as rollout, pytest.raises(RunError, match=problem):
        rollout({}, rollout.init(None, None))


@pytest.mark.parametrize("file", [workers.__file__, loop_futures.__file__])
def test_what_carries_answers_into_the_loop_is_not_interrupted(file):
    """On a machine that stalls, the alarm may interrupt the loop in a callback of this package."""
    here = {}
    exec(compile("def carry(slow): slow()", file, "exec"), here)

    async def main():
        done = []

        def slow():
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
            done.append(True)

        with Watchdog(0.1):
            asyncio.get_running_loop().call_soon(here["carry"], slow)
            await asyncio.sleep(0.05)
        return done

    assert asyncio.run(main()) == [True]


def test_a_split_without_examples_is_an_error_for_the_user():
    with pytest.raises(RunError, match="no examples in the split 'train'"):
        make_rollout(Talk(conversation, n=0))
