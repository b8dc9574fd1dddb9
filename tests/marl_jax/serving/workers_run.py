"""A server with a worker and without a model, to be ended. It imports no JAX.

    python -m tests.marl_jax.serving.workers_run

Writes its address to its output once it answers, and "stopped" at its end.
"""

import asyncio
import logging

import numpy as np

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.workers import pool
from models import tokenizers


class Slow:
    """Answers "abab" after two seconds."""

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None):
        await asyncio.sleep(2.0)
        tokens = np.frombuffer(b"abab", np.uint8).astype(np.int32)
        return [Completion(tokens, np.zeros(4, np.float32), "stop", np.zeros(4, np.int32))] * n


def main() -> None:
    logging.basicConfig(format="%(message)s")
    speaker = Speaker(Slow(), tokenizers.load("tiny"), Sampling(), 512)
    endpoint = Endpoint({"one": ServedModel.of("one", speaker)})
    pool.serve(endpoint, "127.0.0.1", 0, workers=1, drain_seconds=20, on_ready=lambda url: print(url, flush=True))
    print("stopped", flush=True)


if __name__ == "__main__":
    main()
