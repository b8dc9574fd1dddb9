"""A run of two host rollouts with a remote judge, to be killed while the judge hangs.

    python -m tests.marl_jax.judge_run FOLDER URL#MODEL

Each rollout ends with a "checkpoint"; a process that finds one resumes from it.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from envs.tasks.judges import LanguageJudge, Referee
from envs.tasks.judges.referee import Contest, ruled
from envs.tasks.task import Outcome
from marl_jax.serving.remote_models import RemoteModels, RemoteSettings
from tests.marl_jax.tiny_host import make_rollout

STEPS = 2


async def judged(ask, example):
    """One reply, compared with a reference."""
    reply = await ask.chat(0).say(example)
    ruling = await ruled(ask, 0.25, 0.75, lambda against: Contest(example, reply.text or "?", against, (1.0, 0.0)))
    reply.reward(agent=ruling.own)
    return Outcome(0.25, ruling.metrics)


def judge_of(place, **settings):
    """Return a judge at an endpoint."""
    models = RemoteModels(RemoteSettings(deadline=600.0, cache=""))

    async def ask(messages):
        ((text, _),) = await models.complete(place, messages)
        return text

    return Referee(LanguageJudge(ask), **settings)


def main(folder: Path, place: str) -> None:
    """Play the rollouts that have no checkpoint yet."""
    checkpoint = folder / "checkpoint.json"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
    while state is None or state["step"] < STEPS:
        rollout = make_rollout(judged, n_examples=4, samples=2, journal=folder / "journal")
        rollout.runner.judge = judge_of(place, limit=600.0)
        state = state or rollout.init(None, None)
        step = state["step"]
        samples, state, _ = rollout({}, state)
        rollout.close()
        arrays = {jax.tree_util.keystr(k): x for k, x in jax.tree_util.tree_flatten_with_path(samples)[0]}
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"samples_{step}.npz", **arrays)
        checkpoint.write_text(json.dumps(state))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
