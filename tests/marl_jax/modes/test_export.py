"""Exported policies equal the trained ones."""

import dataclasses
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from marl_jax import setup
from marl_jax.errors import RunError
from marl_jax.evaluation.unmasked import legal_answer_rate, random_positions
from marl_jax.modes import export
from marl_jax.running.checkpoint import Checkpoints
from models import lora, peft
from models.weights.load import load


def make_run(workdir, rank, style="plain", task=""):
    """A run with one checkpoint, with weights that differ from the initial ones."""
    config = defaults.get_config()
    config.env.style, config.mesh.data = style, 1
    if task:
        defaults.use_task(config, task)
    config.model.lora.rank = rank
    config.model.shape.update(dict(d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=16, d_ff=48))
    made = setup.make(config)
    trained, frozen = made.backbone.weights_at_start()
    trained = jax.tree.map(lambda x: x + np.linspace(0, 0.5, x.size, dtype=x.dtype).reshape(x.shape),
                           jax.device_get(trained))  # fmt: skip
    checkpoints = Checkpoints(workdir)
    checkpoints.save(7, jax.device_put({"trained": {"main": trained}, "optimizer": np.zeros(3, np.float32)}), {})
    checkpoints.close()
    return config, made, trained, frozen


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.nightly
def test_all_weights(tmp_path):
    config, made, trained, _ = make_run(tmp_path, rank=0)
    assert export.main(config, tmp_path) == [tmp_path / "export" / "main"]
    cfg, params = load(tmp_path / "export" / "main")[:2]
    assert cfg == made.backbone.model.cfg
    assert_same(params, trained["model"])


EVALUATED = dict(opponent="random", games=64, win_rate=0.75, win_rate_low=0.6, win_rate_high=0.9)


@pytest.fixture(scope="module", params=["plain", pytest.param("chat", marks=pytest.mark.nightly)])
def exported(request, tmp_path_factory):
    """A run with an adapter and evaluations of several steps, and its exported folders."""
    workdir = tmp_path_factory.mktemp("exported")
    run = make_run(workdir, rank=4, style=request.param)
    steps = [dict(step=3, win_rate=0.5), dict(step=7), dict(step=9, win_rate=0.1)]
    (workdir / "eval.jsonl").write_text("".join(json.dumps(EVALUATED | step) + "\n" for step in steps))
    return run, export.main(run[0], workdir)


def test_an_adapter_is_merged_and_also_written_alone(exported):
    (config, made, trained, frozen), (adapter, merged) = exported
    assert [adapter.name, merged.name] == ["main-adapter", "main"]
    scale = lora.scales(1, 4, config.model.lora.alpha)
    expected = lora.merge(frozen["model"], trained["adapters"], scale, 0)
    assert_same(load(merged)[1], expected)
    alone = peft.load(adapter, made.backbone.model.cfg)
    assert_same(alone.weights["q"]["a"], np.asarray(trained["adapters"]["q"]["a"])[:, 0])


def test_the_card_has_the_figures_and_the_exact_prompt(exported):
    (config, made, *_), (adapter, merged) = exported
    card = (merged / "README.md").read_text()
    assert card == (adapter / "README.md").read_text()
    assert "step 7 of 200" in card and "| random | 64 | win_rate | 0.750 | 0.600 to 0.900 |" in card
    assert "0.500 |" not in card and "0.100 |" not in card, "other steps"
    shown = re.search(r"```text\n(.*?)\n```", card, re.DOTALL)[1]
    state = made.game.reset(jax.random.key(0))
    tokens, length = jax.jit(made.backbone.game_prompt.opening)(state, np.int32(0))
    assert made.backbone.tokenizer.encode(shown) == np.asarray(tokens)[: int(length)].tolist()
    assert "Generate at most 1 token." in card and "`1`, `2`, `3`" in card and "random initialization" in card
    assert json.loads((merged / "run_config.json").read_text())["env"]["style"] == config.env.style
    legal = float(re.search(r"in random positions: ([\d.]+)%", card)[1])
    assert legal == pytest.approx(100 * by_hand(made, load(merged)[1]), abs=0.05)


def by_hand(made, params):
    """The share of legal answers, from the most likely tokens of the whole vocabulary."""
    game, backbone = made.game, made.backbone
    states, right = random_positions(game, 512, jax.random.key(0)), 0

    @jax.jit
    def read(params, states):
        tokens, lengths = jax.vmap(backbone.game_prompt.opening)(states, jax.vmap(game.player)(states))
        hidden, _ = backbone.model.forward(params, tokens, lengths=lengths, dtype=jnp.float32)
        logits = backbone.model.logits(params, hidden[jnp.arange(512), lengths - 1])
        return jnp.argmax(logits, axis=-1), jax.vmap(game.legal)(states), jax.vmap(game.done)(states)

    best, legals, done = jax.device_get(read(params, states))
    for token, legal in zip(best, legals, strict=True):
        right += chr(token) in [name for name, one in zip(game.action_names, legal, strict=True) if one]
    assert not done.any()
    return right / 512


def test_a_policy_that_puts_everything_on_legal_names_answers_legally(tmp_path):
    """All logits but those of one cell are pushed down; that cell is legal in some positions."""
    config, made, *_ = make_run(tmp_path, rank=0)
    states = random_positions(made.game, 512, jax.random.key(0))
    params = made.backbone.params(jax.random.key(0))
    model = made.backbone.model
    fifth = dataclasses.replace(made.backbone, model=Always(model, ord("5")))
    free = np.mean(jax.jit(jax.vmap(made.game.legal))(states), axis=0)[4]
    assert legal_answer_rate(made.game, fifth, params) == pytest.approx(free) and 0.2 < free < 0.8


@dataclasses.dataclass(frozen=True)
class Always:
    """A model that always prefers one token."""

    model: Any
    token: int

    def forward(self, *args, **settings):
        return self.model.forward(*args, **settings)

    def logits(self, params, hidden):
        return jax.nn.one_hot(jnp.full(hidden.shape[:-1], self.token), self.model.cfg.vocab_size)


def test_the_card_of_a_task_shows_its_first_conversation(tmp_path):
    config, *_ = make_run(tmp_path, rank=0, task="solver_checker")
    (folder,) = export.main(config, tmp_path)
    card = (folder / "README.md").read_text()
    assert "It answers as the role solver" in card and "\n<|im_start|>user\nWhat is " in card
    assert "There was no evaluation." in card and "Legal answers" not in card


def test_a_folder_without_checkpoints_is_reported(tmp_path):
    config, *_ = make_run(tmp_path / "run", rank=0)
    with pytest.raises(RunError, match="has no checkpoint"):
        export.main(config, tmp_path)
