"""Reward functions of a module, as a user's package has them; they are called in other processes."""

import asyncio
import os
import time


def right(completion, answer):
    """One sample at a time, with the columns it names."""
    return completion.strip() == answer


def process(completion):
    """The process in which it runs."""
    return float(os.getpid())


def hangs(completion):
    """Never ends."""
    time.sleep(3600)


def raises(completion):
    """Fails."""
    raise ZeroDivisionError("no luck")


def exits(completion):
    """Takes its process down."""
    os._exit(1)


def as_trl(prompts, completions, answer, **kwargs):
    """Lists, as TRL calls reward functions."""
    assert len(prompts) == len(completions) == len(answer) and all(len(v) == len(prompts) for v in kwargs.values())
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, answer, strict=True)]


def chatty(completions, **kwargs):
    """TRL's conversations: a completion is a list of messages."""
    return [float(len(completion[0]["content"])) for completion in completions]


async def waits(completion):
    """Asks a server, as it were."""
    await asyncio.sleep(0.01)
    return 0.5
