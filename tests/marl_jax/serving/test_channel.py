"""Traffic between a worker and the process with the models: messages, completions, cancellations and errors."""

import asyncio
import contextlib
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax.errors import RunError
from marl_jax.sampling.batcher_thread import BatcherClosed, BatcherFailed
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.workers import serialization
from marl_jax.serving.workers.remote_sampler import SamplerChannel, WorkerSampler
from marl_jax.serving.workers.sampler_server import NumberedSamplers, SamplerServer
from tests.marl_jax.tiny_host import merging_tokenizer
from tests.marl_jax.tiny_serving import Parrot, served

# ------------------------------------------------------------------------------------------------------------ messages

columns = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(width=32), st.integers(0, 2**31 - 1)), max_size=5)


def completion_of(rows, finish):
    tokens, logps, versions = np.array(rows, object).reshape(-1, 3).T
    return Completion(tokens.astype(np.int32), logps.astype(np.float32), finish, versions.astype(np.int32))


def bits(answer):
    return [x.tobytes() for x in (answer.tokens, answer.logps, answer.versions)], answer.finish


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.lists(columns, max_size=3)), max_size=5),
    st.text(max_size=9), st.integers(1, 40),
)  # fmt: skip
def test_messages_are_read_as_they_were_written_wherever_the_stream_is_cut(several, text, step):
    sent, expected = b"", []
    for number, rows in several:
        found = [completion_of(row, serialization.FINISHES[1 + k]) for k, row in enumerate(rows)]
        fields = {
            "sampling": serialization.sampling_fields(Sampling(seed=number, stop_strings=("x" + text,), top_p=0.1))
        }
        ids = [token for row in rows for token, *_ in row]
        sent += (
            serialization.answers(number, found)
            + serialization.ask(number, ids, fields)
            + serialization.json_message(serialization.VALUE, 1, text)
        )
        sent += b"".join(serialization.tokens(number, k, one) for k, one in enumerate(found))
        expected.append((number, found, ids))
    messages = serialization.Messages()
    got = [one for at in range(0, len(sent), step) for one in messages.feed(sent[at : at + step])]
    for number, found, ids in expected:
        (kind, payload), (_, asked), (_, value), *pieces = got[: 3 + len(found)]
        got = got[3 + len(found) :]
        assert kind == serialization.ANSWERS and serialization.read_answers(payload)[0] == number
        assert [bits(one) for one in serialization.read_answers(payload)[1]] == [bits(one) for one in found]
        again, fields, read = serialization.read_ask(asked)
        assert (again, read) == (number, ids)
        assert serialization.read_sampling(fields["sampling"]) == Sampling(
            seed=number, stop_strings=("x" + text,), top_p=0.1
        )
        assert serialization.read_json(value) == (1, text)
        for k, (one, (_, piece)) in enumerate(zip(found, pieces, strict=True)):
            read = serialization.read_tokens(piece)
            assert read[:2] == (number, k) and bits(read[2])[0] == bits(one)[0]
    assert not got


@pytest.mark.parametrize(
    "damage",
    [
        serialization.HEAD.pack(4, 0),
        serialization.HEAD.pack(4, 99),
        serialization.HEAD.pack(1 << 30, serialization.VALUE),
    ],
)
def test_damage_is_no_message(damage):
    with pytest.raises(serialization.WireError):
        list(serialization.Messages().feed(damage))


# ------------------------------------------------------------------------------------------------------------ channels


@contextlib.asynccontextmanager
async def linked(models):
    """Yield the two ends of a channel: (worker, samplers)."""
    samplers = NumberedSamplers(models)
    desk = SamplerServer(samplers, {"top_logprobs": samplers.top_logprobs})
    worker, (one, other) = SamplerChannel({}), socket.socketpair()
    await desk.open(one)
    await worker.open(other)
    try:
        yield worker, desk
    finally:
        worker.close()
        desk.close()
        await asyncio.sleep(0)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def test_a_remote_sampler_answers_as_the_sampler_does():
    async def run():
        parrot, asked = Parrot(), [([97, n], Sampling(seed=n, max_new_tokens=6), 1 + n % 3) for n in range(9)]
        async with linked(served(parrot)) as (worker, _):
            remote, pieces = WorkerSampler(worker, 0), {}

            def note(n):
                return lambda k, new: pieces.setdefault((n, k), []).append(new)

            got = await asyncio.gather(*(
                remote.answer(ids, sampling, policy=1, n=n, on_tokens=note(i))
                for i, (ids, sampling, n) in enumerate(asked)
            ))  # fmt: skip
            for i, (ids, sampling, n) in enumerate(asked):
                expected = await Parrot().answer(ids, sampling, policy=1, n=n)
                assert [bits(one) for one in got[i]] == [bits(one) for one in expected]
                for k, one in enumerate(expected):
                    shown = [token for new in pieces.get((i, k), []) for token in new.tokens.tolist()]
                    assert shown == one.tokens.tolist()[:-1]
            with pytest.raises(ValueError, match="ids must be <= "):
                await remote.answer([1 << 40], Sampling())

    asyncio.run(run())


def test_a_schema_is_followed_in_the_process_with_the_model():
    pytest.importorskip("llguidance", reason="llguidance is not installed")

    async def run():
        parrot = Parrot()
        models = served(parrot)
        constraint = models["one"].json_output.constraint({"enum": ["a"]})
        async with linked(models) as (worker, _):
            await WorkerSampler(worker, 0).answer([97], Sampling(constraint=constraint))
        ((_, sampling),) = parrot.asked
        assert sampling.constraint is not constraint
        assert (sampling.constraint().mask() == constraint().mask()).all() and not constraint().mask().all()

    asyncio.run(run())


def test_cancelling_frees_the_rows_and_the_rest_goes_on():
    async def run():
        parrot = Parrot(lambda _: "ab" * 50, delay=0.01)
        async with linked(served(parrot)) as (worker, desk):
            remote = WorkerSampler(worker, 0)
            one, two = (asyncio.ensure_future(remote.answer([n], Sampling())) for n in (1, 2))
            await until(lambda: parrot.under_way == 2)
            one.cancel()
            await until(lambda: parrot.under_way == 1)
            assert parrot.cancelled == 1 and len(await two) == 1
            worker.close()  # like a worker that dies
            three = asyncio.ensure_future(Parrot(delay=0).answer([1], Sampling()))
            await until(desk.lost.done)
            await three
            with pytest.raises(BatcherClosed):
                await remote.answer([1], Sampling())
            assert not remote.running

    asyncio.run(run())


@pytest.mark.parametrize(
    "error", [ValueError("policy is 9"), BatcherFailed("it failed"), BatcherClosed("closed"), RunError("no weights")]
)
def test_errors_arrive_as_they_were_raised(error):
    class Failing:
        tokenizer = merging_tokenizer()

        async def answer(self, *args, **more):
            raise error

    async def run():
        async with linked(served(Failing())) as (worker, _):
            remote = WorkerSampler(worker, 0)
            with pytest.raises(type(error), match=str(error)):
                await remote.answer([1], Sampling())
            assert remote.running == (not isinstance(error, BatcherFailed | BatcherClosed))

    asyncio.run(run())


@pytest.mark.parametrize(
    "last", [b"", serialization.json_message(serialization.VALUE, 1, [1] * 50)[:20], b"nonsense that is no message"]
)
def test_whoever_waits_hears_of_an_end_that_is_gone(last, caplog):
    """The other end closes, possibly inside a message, or sends invalid data."""

    async def run():
        one, other = socket.socketpair()
        worker = await SamplerChannel({}).open(one)
        waiting = asyncio.ensure_future(WorkerSampler(worker, 0).answer([1], Sampling()))
        in_thread = asyncio.ensure_future(asyncio.to_thread(worker.call_in_thread, "top_logprobs"))
        await asyncio.sleep(0.05)
        other.sendall(last)
        if not last.startswith(b"nonsense"):
            other.close()
        async with asyncio.timeout(10):
            for one in (waiting, in_thread):
                with pytest.raises(BatcherClosed):
                    await one
            await worker.lost
        other.close()

    asyncio.run(run())
