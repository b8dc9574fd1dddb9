"""Reward functions in a module, like those of a user, which are called in other processes."""

import asyncio
import os
import time


def right(completion, answer):
    """Judge one completion with the columns that the parameters name."""
    return completion.strip() == answer


def process(completion):
    """Return the id of the current process."""
    return float(os.getpid())


def hangs(completion):
    """Never return."""
    time.sleep(3600)


def raises(completion):
    """Raise an error."""
    raise ZeroDivisionError("no luck")


def exits(completion):
    """End the process."""
    os._exit(1)


def as_trl(prompts, completions, answer, **kwargs):
    """Judge lists, as in TRL."""
    assert len(prompts) == len(completions) == len(answer) and all(len(v) == len(prompts) for v in kwargs.values())
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, answer, strict=True)]


def chatty(completions, **kwargs):
    """Judge TRL conversations, where a completion is a list of messages."""
    return [float(len(completion[0]["content"])) for completion in completions]


async def waits(completion):
    """Simulate a request to a server."""
    await asyncio.sleep(0.01)
    return 0.5
