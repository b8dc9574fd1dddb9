"""Futures of a thread in event loops: nothing is lost, and simultaneous results wake a loop once."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax.sampling.loop_futures import LoopFutures


def test_what_is_done_together_wakes_the_loop_once():
    async def main():
        loops, futures, wakes = LoopFutures(), [Future() for _ in range(50)], []
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args, **kwargs: (wakes.append(args), real(*args, **kwargs))
        waiting = [asyncio.ensure_future(loops.wait_for(future)) for future in futures]
        await asyncio.sleep(0)

        def settle():
            with loops.together():
                for i, future in enumerate(futures):
                    future.set_result(i)

        thread = threading.Thread(target=settle)
        thread.start()
        found = await asyncio.gather(*waiting)
        thread.join()
        return found, wakes

    found, wakes = asyncio.run(main())
    assert found == list(range(50)) and len(wakes) == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["value", "error", "cancel", "give up"]), max_size=12), st.booleans())
def test_every_future_ends_as_it_ended_there(kinds, together):
    async def main():
        loops, futures = LoopFutures(), [Future() for _ in kinds]
        waiting = [asyncio.ensure_future(loops.wait_for(future)) for future in futures]
        await asyncio.sleep(0)
        for kind, one in zip(kinds, waiting, strict=True):
            if kind == "give up":
                one.cancel()
        await asyncio.sleep(0)

        def settle():
            if together:
                with loops.together():
                    end_all()
            else:
                end_all()

        def end_all():
            for i, (kind, future) in enumerate(zip(kinds, futures, strict=True)):
                if kind == "cancel":
                    future.cancel()
                elif kind == "error":
                    future.set_exception(KeyError(i))
                elif kind == "value":
                    future.set_result(i)

        thread = threading.Thread(target=settle)
        thread.start()
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
        thread.join()
        assert all(future.done() for future in futures)
        return found

    for i, (kind, found) in enumerate(zip(kinds, asyncio.run(main()), strict=True)):
        expected = {"value": i, "error": KeyError}.get(kind, asyncio.CancelledError)
        assert found == expected if kind == "value" else type(found) is expected


def test_a_loop_that_is_closed_holds_up_nobody():
    loops, future = LoopFutures(), Future()

    async def begin():
        task = asyncio.ensure_future(loops.wait_for(future))
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    loop.close()
    future.set_result(1)
    with pytest.raises(asyncio.InvalidStateError):
        task.result()
    task._log_destroy_pending = False


def test_calls_come_in_order_with_results_in_one_wake_up_and_one_that_fails_holds_up_nobody():
    async def main():
        loops, future, seen, reported = LoopFutures(), Future(), [], []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        waiting = asyncio.ensure_future(loops.wait_for(future))
        waiting.add_done_callback(lambda _: seen.append("answer"))
        await asyncio.sleep(0)

        def step():
            with loops.together():
                loops.call(loop, seen.append, "a")
                with loops.together():  # as when completions are delivered within a step
                    loops.call(loop, [].remove, "b")
                    future.set_result(None)
                assert not seen
                loops.call(loop, seen.append, "c")

        await asyncio.to_thread(step)
        await waiting
        await asyncio.sleep(0)
        return seen, reported

    seen, reported = asyncio.run(main())
    assert seen == ["a", "c", "answer"] and [type(error) for error in reported] == [ValueError]
