"""Prompts with pictures: sampler and learner agree, gradients reach the encoder, and the picture matters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults, models
from envs.games import registry as games
from envs.games.registry import make_medium, make_text
from marl_jax.agents import prompt_media, scoring
from marl_jax.errors import ConfigError
from marl_jax.rollouts.demonstrations import Demonstrations
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.schema import validate
from models import registry
from models.config import VisionConfig
from models.media import mrope_positions
from models.model import build
from tests.marl_jax import tiny_play
from tests.models.tiny_models import quick_jit

pytestmark = pytest.mark.long

IMAGE = 261
VISION = VisionConfig(n_layers=1, d_model=8, n_heads=1, d_ff=8, image_id=IMAGE)
GAME = games.make("tic_tac_toe")


@functools.cache
def prompt(style="brief", observation="image"):
    place = tiny_play.TOKENIZER.decode([IMAGE]) * 9
    return (
        make_text(GAME, style).with_media(make_medium(GAME, style), [place], observation).compile(tiny_play.TOKENIZER)
    )


@functools.cache
def policy(style="brief", observation="image", mrope=False, free=0, long_names=False, **settings):
    """A policy of a few thousand parameters that sees tic-tac-toe."""
    text = prompt(style, observation)
    names = [b"go %d" % i if i % 2 else b"%d" % i for i in range(9)] if long_names else None
    shape = tiny_play.SHAPE | dict(vision=VISION) | (dict(mrope_sections=(1, 2, 1)) if mrope else {})
    answers, medium = tiny_play.answers(text, names, free), make_medium(GAME, style)
    return tiny_play.policy_of(text, answers, shape=shape, medium=medium, **settings)


@functools.cache
def played(made, style="brief", observation="image", rows=4, turns=3, **settings):
    """Return samples of a rollout and the trained weights."""
    program = tiny_play.rollout(GAME, made, rows, turns, prompt=prompt(style, observation), **settings)
    trained, frozen = tiny_play.weights(made)

    def run(weights):
        return program({"main": weights}, program.init(jax.random.key(1), {"main": weights}), jax.random.key(2))[0]

    return quick_jit(run)({**frozen, **trained}), trained, frozen


CASES = {
    "one token": {},
    "mrope": dict(mrope=True),
    "after a prefix": dict(style="full"),
    "names of several tokens": dict(long_names=True),
    "after a prefix with mrope": dict(style="full", mrope=True, long_names=True),
    "free text": dict(free=4),
    "text and picture": dict(observation="both"),
    "separate critic": dict(critic="separate"),
}


@pytest.mark.nightly_for(
    "names of several tokens", "text and picture", "free text", "mrope", "separate critic", "after a prefix"
)  # fmt: skip
@pytest.mark.parametrize("case", CASES)
def test_sampler_and_learner_agree(case):
    made = policy(**CASES[case])
    texts = {name: CASES[case][name] for name in ("style", "observation") if name in CASES[case]}
    samples, trained, frozen = played(made, **texts)
    assert samples.media.shape == (samples.n, 9) and samples.media.dtype == jnp.uint8
    assert bool(made.prefix) == (texts.get("style") == "full")
    scores = quick_jit(lambda w, s: scoring.score(made, w, s))({**frozen, **trained}, samples)
    scored = np.asarray(samples.mask()) > 0
    np.testing.assert_allclose(np.asarray(scores.logps)[scored], np.asarray(samples.logps)[scored], atol=2e-5)
    first = np.asarray(samples.first()) > 0
    np.testing.assert_allclose(np.asarray(scores.values)[first], np.asarray(samples.values)[first], atol=2e-5)


@pytest.mark.nightly_for("rope-only")
@pytest.mark.parametrize("mrope", [False, True], ids=["rope-only", "mrope"])
def test_candidates_share_the_picture_of_their_prompt(mrope):
    made = policy(mrope=mrope, long_names=True, critic="none")
    samples, trained, frozen = played(made, kind=TreeRollout, candidates=3)
    assert samples.branch is not None and samples.media.shape == (samples.n, 9)
    logps = quick_jit(lambda w, s: scoring.answer_logps(made, w, s))({**frozen, **trained}, samples)
    scored = np.asarray(samples.mask()) > 0
    np.testing.assert_allclose(np.asarray(logps)[scored], np.asarray(samples.logps)[scored], atol=2e-5)


@pytest.mark.nightly_for("rope-only")
@pytest.mark.parametrize("mrope", [False, True], ids=["rope-only", "mrope"])
def test_packed_rows_keep_their_pictures(mrope):
    made = policy(free=4, mrope=mrope, critic="none")
    samples, trained, frozen = played(made, rows=3, turns=4)
    alone = quick_jit(lambda w, s: scoring.answer_logps(made, w, s))({**frozen, **trained}, samples)

    def packed(weights, samples):
        rows = scoring.packing.plan(samples, 3, jnp.ones((samples.n,), bool))
        slots = rows.pick(samples.replace(completion_at=None))
        return rows.put(jnp.zeros(samples.logps.shape), scoring.answer_logps(made, weights, slots, rows))

    together = quick_jit(packed)({**frozen, **trained}, samples)
    scored = np.asarray(samples.mask()) > 0
    np.testing.assert_allclose(np.asarray(together)[scored], np.asarray(alone)[scored], atol=2e-5)


def test_gradients_reach_the_encoder_and_the_picture_matters():
    made = policy()
    samples, trained, _ = played(made)

    def total(weights, samples):
        logps = scoring.answer_logps(made, weights, samples)
        return jnp.sum(logps * samples.mask()), logps

    gradients = quick_jit(jax.grad(total, has_aux=True))
    grads, logps = gradients({"model": trained["model"]}, samples)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(grads["model"]["vision"]))
    _, others = gradients({"model": trained["model"]}, samples.replace(media=samples.media[::-1]))
    assert np.abs(logps - others).max() > 1e-3


def test_the_encoder_reads_the_pixels():
    """Codes are only storage: two tiles with the same pixels have the same embedding."""
    made = policy()
    codes = jnp.arange(9, dtype=jnp.uint8)[None]
    tiles = (*made.medium.tiles[:1], *made.medium.tiles[:1], *made.medium.tiles[2:])
    same = dataclasses.replace(made, medium=dataclasses.replace(made.medium, tiles=tiles))
    params = tiny_play.weights(made)[0]["model"]
    at_once = quick_jit(lambda p, c: prompt_media.embeddings(same, p, c))(params, codes)
    swapped = quick_jit(lambda p, c: prompt_media.embeddings(same, p, c))(params, codes.at[0, 1].set(0))
    np.testing.assert_array_equal(at_once, swapped)

    def by_patches(params, codes):
        patches, encoder = jax.vmap(made.medium.patches)(codes), made.model.vision
        return encoder(params["vision"], patches, encoder.layout([made.medium.patch_grid[1:]]), dtype=made.dtype)

    expected = quick_jit(by_patches)(params, codes)
    np.testing.assert_allclose(
        quick_jit(lambda p, c: prompt_media.embeddings(made, p, c))(params, codes), expected, atol=1e-5
    )


@pytest.mark.quick
def test_rotations_are_those_of_the_model():
    made = policy(mrope=True)
    tokens = np.array([[1, 2, *[IMAGE] * 9, 3, 4, IMAGE], [1, *[IMAGE] * 9, 3, 4, 5, 6]], np.int32)
    index = prompt_media.places(made, jnp.asarray(tokens))
    assert index[0, -1] == -1  # a sampled placeholder is text
    positions = 7 + jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    found = prompt_media.rotations(made.medium, index, positions)
    text = np.where(np.asarray(index) < 0, 1, tokens)
    expected = mrope_positions(text, IMAGE, np.full((2, 1, 2), 3), np.full((2,), 7))
    np.testing.assert_array_equal(found, expected)


def test_demonstrations_count_distinct_pictures():
    made = policy(critic="none")
    bot = games.GAMES.get("tic_tac_toe").bots["minimax"](GAME)
    program = tiny_play.rollout(GAME, made, 8, 3, prompt=prompt(), kind=Demonstrations, bot=bot)
    trained, frozen = tiny_play.weights(made)
    answers = quick_jit(lambda w: program.heldout_eval({"main": w}, jax.random.key(0), 2))({**frozen, **trained})
    samples = jax.eval_shape(
        lambda w: program({"main": w}, program.init(jax.random.key(1), {}), jax.random.key(2))[0], {**frozen, **trained}
    )
    assert samples.media.shape == (24, 9)
    assert len(np.unique(np.asarray(answers.prompts).reshape(24, -1), axis=0)) > 1


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env.context": "history"}, "config.env.observation is 'image' with env.context 'history'"),
        ({"model.name": "tiny"}, "but the model must be one of: tiny-vl"),
        ({"algo.critic": "central"}, "a central critic joins the prompts of all seats"),
    ],
)
def test_what_cannot_have_pictures_is_refused(changes, message):
    config = defaults.get_config()
    config.model = models.tiny_vl()
    config.env.observation = "image"
    validate.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)


@functools.cache
def listener(fusion="", board="table", rows=3):
    """A policy that hears a tone and reads a table, and the prompt of its game."""
    cfg = registry.get("tiny-media-cross" if fusion == "cross" else "tiny-media").config
    cfg = dataclasses.replace(cfg, **tiny_play.SHAPE)
    if cfg.resampler:
        cfg = dataclasses.replace(cfg, resampler=dataclasses.replace(cfg.resampler, n_heads=2, d_ff=8, n_queries=2))
    game = games.make("lookup", rows=rows, board=board)
    medium = make_medium(game, "brief")
    places = [tiny_play.TOKENIZER.decode([IMAGE] * size) for size in prompt_media.sizes(cfg, medium)]
    text = make_text(game, "brief").with_media(medium, places, order=fusion if fusion == "prepended" else "interleaved")
    text = text.compile(tiny_play.TOKENIZER)
    made = dataclasses.replace(
        tiny_play.policy(critic="none"),
        model=build(cfg),
        answers=tiny_play.answers(text),
        rules=text.prefix,
        medium=medium,
    )
    return game, made, text


@functools.cache
def heard(fusion="", board="table"):
    """Return `listener`'s policy, samples of a rollout and its weights."""
    game, made, text = listener(fusion, board)
    program = tiny_play.rollout(game, made, 8, 2, prompt=text)
    trained, frozen = tiny_play.weights(made)
    weights = {**frozen, **trained}
    run = quick_jit(lambda w: program({"main": w}, program.init(jax.random.key(1), {"main": w}), jax.random.key(2))[0])
    return made, run(weights), weights


@pytest.mark.nightly_for("prepended", "cross-picture")
@pytest.mark.parametrize(
    ("fusion", "board"), [("", "table"), ("prepended", "table"), ("cross", "table"), ("cross", "picture")],
    ids=["interleaved", "prepended", "cross", "cross-picture"],
)  # fmt: skip
def test_sounds_and_tables_agree_between_sampler_and_learner(fusion, board):
    made, samples, weights = heard(fusion, board)
    assert samples.media.shape == (samples.n, 1 + 6)
    logps = quick_jit(lambda w, s: scoring.answer_logps(made, w, s))(weights, samples)
    np.testing.assert_allclose(np.asarray(logps)[:, 0], np.asarray(samples.logps)[:, 0], atol=2e-5)


def test_gradients_of_sounds_and_tables_equal_finite_differences():
    made, samples, weights = heard("cross")

    def total(model):
        return jnp.sum(scoring.answer_logps(made, {**weights, "model": model}, samples) * samples.mask())

    program = quick_jit(jax.value_and_grad(total))
    start = jax.device_get(weights["model"])
    grads = jax.device_get(program(start)[1])
    for name in ("audio", "table", "resampler"):
        size = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(grads[name])))
        assert size > 0
        step = np.float32(1e-2) / size  # along the gradient
        moved = jax.tree.map(lambda p, g, step=step: p + step * g, start[name], grads[name])
        back = jax.tree.map(lambda p, g, step=step: p - step * g, start[name], grads[name])
        high, low = (float(program({**start, name: own})[0]) for own in (moved, back))
        np.testing.assert_allclose((high - low) / (2 * 1e-2), size, rtol=0.05)


@pytest.mark.quick
def test_media_have_the_scale_of_tokens():
    """Embeddings of another size than those of tokens hide the changes that layers add to them."""
    _, made, _ = listener()
    params = made.model.init(jax.random.key(0))  # its operations are compiled, as those of other tests of this file
    codes = np.asarray([[5, 1, 2, 2, 3, 3, 1]], np.uint8)
    found = np.asarray(quick_jit(lambda p: prompt_media.embeddings(made, p, codes))(params))
    found, token = np.sqrt(np.mean(found**2, axis=-1)), np.sqrt(np.mean(np.asarray(params["embed"]) ** 2))
    assert (found > token / 2).all() and (found < token * 2).all()
