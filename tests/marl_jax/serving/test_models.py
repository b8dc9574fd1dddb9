"""Models of `--mode=serve`: each uses its own weights, whatever their source."""

import asyncio
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import serve
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.setup import served_models
from marl_jax.setup.served_models import ModelPlace, load_models
from marl_jax.setup.weights import restore_weights
from marl_jax.web.page.lobby import GameLobby
from marl_jax.web.page.offers import find_offers
from models import lora, peft, registry, tokenizers
from models.model import build
from models.weights.export import export
from tests.marl_jax import tiny_run
from tests.marl_jax.tiny_engine import QuickEngine, quick_jit
from tests.models.tiny_models import random_params

CONFIG = dataclasses.replace(
    registry.get("tiny").config, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16
)
PROMPT = list(b"hello")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Compile programs without optimization."""
    monkeypatch.setattr(served_models, "Engine", QuickEngine)
    monkeypatch.setattr("marl_jax.agents.team_sampler.Engine", QuickEngine)


def serve_config(*places):
    config = tiny_run.get_config()
    config.serve.update(dict(models=tuple(places), max_num_seqs=2, max_length=64))
    return config


def greedy(params, steps=6):
    """Return the greedy completion, with every token from a forward pass over the full row."""
    model, row = build(CONFIG), list(PROMPT)
    padded = np.zeros((1, 16), np.int32)
    for _ in range(steps):
        padded[0, : len(row)] = row
        row.append(int(np.argmax(_logits(model, params, padded)[0, len(row) - 1])))
    return row[len(PROMPT) :]


def _run_logits(model, params, tokens):
    return model.logits(params, model.forward(params, tokens, dtype=jnp.float32)[0])


_logits = quick_jit(_run_logits, static_argnums=0)


def answer(model):
    """Return the completion of a served model."""
    speaker, sampling = model.speaker, Sampling(0.0, max_new_tokens=6)
    (found,) = asyncio.run(speaker.sampler.answer(PROMPT, sampling, policy=speaker.policy))
    return found.tokens.tolist(), int(found.versions[-1])


def test_adapters_of_any_rank_share_a_model(tmp_path):
    model, rng = build(CONFIG), np.random.default_rng(0)
    params = random_params(model)
    folder = export(tmp_path / "base", CONFIG, params, tokenizer=tokenizers.load("tiny"))
    expected, places = {"base": greedy(params)}, [f"base={folder}"]
    for name, rank, targets in (("one", 2, ("q", "v")), ("two", 3, ("v", "down"))):
        stack = lora.init(CONFIG, jax.random.key(rank), 1, rank, targets)
        stack = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.float32), stack)
        scale = jnp.asarray([0.7], jnp.float32)
        place = peft.export(tmp_path / name, CONFIG, peft.take(stack, scale, 0))
        places.append(f"{name}={folder}+{place}")
        expected[name] = greedy(lora.merge(params, stack, scale, 0))
    assert len({tuple(tokens) for tokens in expected.values()}) == 3
    sources = load_models(serve_config(*places), tmp_path)
    assert len(sources) == 1
    assert {name: answer(model)[0] for name, model in sources[0].models.items()} == expected
    served_models.close_all(sources)


def moves_of_the_run(room):
    """Return the first moves of a served run on the page, against a user who plays the first legal action."""
    game = next(iter(room.offers))
    assert room.offers[game].opponents[:2] == ["trained policies", "model: mine"]

    async def play():
        shown = await room.begin(game, "trained policies", 1, 0, 0.0)
        shown = await room.move(shown["id"], 1, shown["legal"][0]["action"])
        return [move["words"] for move in shown["moves"]]

    return asyncio.run(play())


def first_moves(made, folder, step):
    """Return the same moves from the policy: the most likely legal action of a forward pass over each prompt."""
    weights = restore_weights(made, folder, step)[1]["main"]["model"]
    state, moves, prompt = made.game.reset(jax.random.key(0)), [], made.backbone.prompt
    for turn in range(3):
        legal = np.asarray(made.game.legal(state))
        action = int(np.argmax(legal))
        if turn != 1:
            row = made.backbone.tokenizer.encode(prompt.opening_text(state, 0))
            padded = np.zeros((1, 16), np.int32)
            padded[0, : len(row)] = row
            logits = np.asarray(_logits(made.backbone.model, weights, padded))[0, len(row) - 1]
            action = int(np.argmax(np.where(legal, logits[prompt.action_ids[:, 0]], -np.inf)))
        moves.append(made.game.action_names[action])
        state = made.game.step(state, jnp.int32(action))[0]
    return moves


def test_a_run_is_served_at_a_step_and_can_be_read_again(tmp_path):
    config = tiny_run.get_config()
    config.rollout.num_envs = 2
    made = setups.make(config)
    checkpoints = Checkpoints(tmp_path)
    steps = {}
    for step in (1, 2):
        trained = made.backbone.weights_at_start()[0]
        trained["model"] = random_params(made.backbone.model, step)
        checkpoints.save(step, {"trained": {"main": trained}}, {})
        steps[step] = greedy(trained["model"])
    checkpoints.close()
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert steps[1] != steps[2]
    sources = load_models(serve_config(f"mine={tmp_path}@1"), tmp_path)
    endpoint = serve.make_endpoint(sources, Keys(required=False), Limits(), None)
    assert answer(endpoint.models["mine"]) == (steps[1], 1)
    room = GameLobby(find_offers(endpoint.models, [source.run for source in sources]))
    assert moves_of_the_run(room) == first_moves(made, tmp_path, "1"), "on the page it plays as in a match"
    assert asyncio.run(endpoint.reload("mine", "newest")) == 2
    assert answer(endpoint.models["mine"]) == (steps[2], 2)
    assert moves_of_the_run(room) == first_moves(made, tmp_path, "2")
    for wrong in ("9", "x"):
        with pytest.raises(RunError):
            asyncio.run(endpoint.reload("mine", wrong))
    samplers = serve.ServedSamplers(sources)
    samplers.pause()
    samplers.resume()
    samplers.drain()
    assert endpoint._health()["models"] == ["mine"] and "failed" not in endpoint._health()
    served_models.close_all(sources)
    assert endpoint._health()["status"] == "failed"


def test_places_are_read_and_refused(tmp_path):
    assert ModelPlace.parse("a=b+c") == ModelPlace("a", "b", "c")
    assert ModelPlace.parse("runs/mine@best").name == "mine"
    assert ModelPlace.parse("random:tiny").name == "tiny"
    assert ModelPlace.parse("x/base+y/adapter").name == "adapter"
    for wrong, message in (
        (("a=",), "must be PLACE or NAME=PLACE"),
        (("nothing/there",), "must be the folder of a run or model"),
        (("random:nothing",), "must be the folder of a run or model"),
        (("tiny",), "has no published weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_models(serve_config(*wrong), tmp_path)
    with pytest.raises(ConfigError, match="has tiny twice"):
        load_models(serve_config("random:tiny", "random:tiny"), tmp_path)
