"""Programs of `examples/` with a real model: conversations are merged and log-probs match the learner.

`make nightly` installs the frameworks in separate environments and runs the tests that need them.
"""

import functools
import importlib
import random
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.tasks.program.task import AgentProgram
from experiments import agent_program
from marl_jax.agents import scoring
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import validate
from marl_jax.serving.sessions.episodes import episode_server
from models.model import build
from tests.conftest import framework_python
from tests.marl_jax.tiny_engine import QuickEngine, quick_jit
from tests.marl_jax.tiny_host import CONFIG, MAX_LENGTH, free_policy, make_rollout, merging_tokenizer
from tests.models.tiny_models import random_params

ROOT = Path(__file__).resolve().parents[3]
NEEDS = {  # framework and package of each example
    "openai_sdk": ("openai", "openai"), "autogen_team": ("autogen", "autogen_agentchat"),
    "langgraph_team": ("langgraph", "langgraph"), "ag2_team": ("ag2", "ag2"),
    "llamaindex_team": ("llamaindex", "llama_index"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sampler():
    """A model with two small layers."""
    model = build(CONFIG)
    engine = QuickEngine(model, random_params(model, 0), dtype=jnp.float32, bucket=128, chunk=4)
    with BatcherThread(Batcher(engine, rows=4, max_length=MAX_LENGTH, chunk=4, tokenizer=merging_tokenizer())) as found:
        yield found


@pytest.mark.nightly_for("*_team")
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_runs_over_a_real_model(name, sampler):
    roles = agent_program.PROGRAMS[name]
    task = AgentProgram(f"{framework_python(*NEEDS[name])} {ROOT / 'examples' / name}.py", roles)
    speaker = Speaker(sampler, merging_tokenizer(), Sampling(max_new_tokens=8), MAX_LENGTH)
    rollout = make_rollout(
        task, speakers=[speaker], seating=lambda seat, turn: 0, server=episode_server, n_examples=2, samples=1
    )
    try:
        samples, _, metrics = rollout({}, rollout.init(None, None))
    finally:
        rollout.close()
    assert metrics["episodes/finished"] == 2, metrics
    answers = samples.completion_lengths > 0
    assert answers.sum() == metrics["completions"] >= 2 * len(roles)
    assert answers.any(1).sum() == 2 * len(roles), "each role has one conversation, however often it speaks"
    assert set(samples.seat[answers].tolist()) == set(range(len(roles)))
    params = random_params(build(CONFIG), 0)
    score = quick_jit(functools.partial(scoring.score, free_policy(1.0)))
    scores = score({"model": params}, jax.tree.map(jnp.asarray, samples))
    np.testing.assert_allclose(scores.logps, samples.logps, atol=2e-5)


@pytest.mark.parametrize(
    "form", [None, "ppo", "autogen_team+per_role", "langgraph_team+per_role+ppo+smollm2", "llamaindex_team"]
)
def test_every_form_of_the_experiment_is_accepted(form, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = agent_program.get_config(form)
    validate.check(config)
    assert set(config.policies) == (set(config.task.params.roles) if form and "per_role" in form else {"main"})


def test_the_sums_of_the_small_model(monkeypatch):
    """Splits are disjoint, the teacher is correct in four of ten cases, and completions are marked."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    made = importlib.import_module("sums_model")
    parts = made.sums()
    pairs = [pair for part in parts.values() for pair in part]
    assert len(pairs) == len(set(pairs)) == 87 * 3 and {part: len(parts[part]) for part in made.SIZES} == made.SIZES
    rng = random.Random(0)
    said = [int(made.teacher(rng, 27, 2)) for _ in range(1000)]
    assert set(said) == {27, 29} and 350 < said.count(29) < 450
    renderer = made.Renderer(made.tokenizers.load("tiny"))
    for system, hears in ((made.SOLVER, False), (made.VERIFIER, True)):
        ids, answers = made.chat(rng, renderer, system, 27, 2, hears)
        texts = renderer.tokenizer.decode([i for i, own in zip(ids, answers, strict=True) if own])
        assert len(ids) == len(answers) and re.fullmatch(r"2[79]<\|im_end\|>2[79]<\|eos\|>", texts), texts
        whole = renderer.tokenizer.decode(ids)
        assert [whole.count(word) for word in (made.question(27, 2), "assistant", "user")] == [1, 2, 2 + hears]
    config = agent_program.get_config("autogen_team+per_role+sums")
    assert set(config.policies) == {"solver", "verifier"} and config.model.lora.rank and not config.model.shape
