"""Soft messages: sampler and learner agree, gradients reach the speaker, and the controls carry nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.registry import make_text
from experiments import half_blind_messages, referential
from marl_jax.agents import messages, scoring
from marl_jax.errors import ConfigError
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.schema import validate
from models.media import Media
from tests.marl_jax import tiny_play
from tests.models.tiny_models import quick_jit

pytestmark = pytest.mark.long

CARDS = 4


@functools.cache
def game(named=0):
    return games.make("referential", cards=CARDS, messages=named)


@functools.cache
def prompt(style="brief", named=0):
    return make_text(game(named), style).compile(tiny_play.TOKENIZER)


@functools.cache
def policy(style="brief", named=0, kind="soft", tokens=2, long_names=False, **settings):
    """A policy of a few thousand parameters for the referential game."""
    text = prompt(style, named)
    names = [b"go %d" % i if i % 2 else b"%d" % i for i in range(CARDS + named)] if long_names else None
    shape = tiny_play.SHAPE | dict(message_tokens=tokens)
    return tiny_play.policy_of(text, tiny_play.answers(text, names), shape=shape, message=kind, **settings)


def weights_of(made):
    """Trained and frozen weights."""
    trained, frozen = tiny_play.weights(made)
    return {**frozen, **trained}


def played(made, style="brief", named=0, rows=8, turns=2, **settings):
    """Return samples of a rollout and the weights."""
    program, weights = (
        tiny_play.rollout(game(named), made, rows, turns, prompt=prompt(style, named), **settings),
        weights_of(made),
    )

    def run(weights):
        return program({"main": weights}, program.init(jax.random.key(1), {"main": weights}), jax.random.key(2))[0]

    return quick_jit(run)(weights), weights


CASES = {
    "one token": {},
    "named messages too": dict(named=2),
    "after a prefix": dict(style="full", named=2),
    "names of several tokens": dict(long_names=True, style="full"),
    "shuffled": dict(kind="shuffled"),
    "frozen": dict(kind="frozen"),
    "separate critic": dict(critic="separate"),
}


@pytest.mark.nightly_for("one token", "shuffled", "frozen", "separate critic", "after a prefix")
@pytest.mark.parametrize("case", CASES)
def test_sampler_and_learner_agree(case):
    made = policy(**CASES[case])
    samples, weights = played(made, **{name: x for name, x in CASES[case].items() if name in ("style", "named")})
    assert bool(made.prefix) == (CASES[case].get("style") == "full")
    listens = np.asarray(samples.seat[:, 0]) == 1
    np.testing.assert_array_equal(np.asarray(samples.media >= 0).any(axis=1), listens)
    scores = quick_jit(lambda w, s: scoring.score(made, w, s))(weights, samples)
    scored = np.asarray(samples.mask()) > 0
    np.testing.assert_allclose(np.asarray(scores.logps)[scored], np.asarray(samples.logps)[scored], atol=2e-5)
    first = np.asarray(samples.first()) > 0
    np.testing.assert_allclose(np.asarray(scores.values)[first], np.asarray(samples.values)[first], atol=2e-5)


@pytest.mark.nightly
def test_candidates_share_the_message_of_their_prompt():
    made = policy(long_names=True, critic="none")
    samples, weights = played(made, kind=TreeRollout, candidates=3)
    assert samples.branch is not None
    logps = quick_jit(lambda w, s: scoring.answer_logps(made, w, s))(weights, samples)
    scored = np.asarray(samples.mask()) > 0
    np.testing.assert_allclose(np.asarray(logps)[scored], np.asarray(samples.logps)[scored], atol=2e-5)


def two_agents(made, samples):
    """The sum of log-probabilities as a function of the speaker's and the listener's parameters."""
    lengths = samples.context_len[:, 0] - samples.positions[:, 0]

    def total(speaker, listener):
        index = messages.inputs(made, listener, samples.media, samples.tokens, lengths)["media"].index
        media = Media(messages.encode(made, speaker, samples.media), index)
        hidden, _ = made.model.forward(
            listener, samples.tokens, lengths=samples.lengths, media=media, dtype=jnp.float32
        )
        before = jnp.take_along_axis(hidden, samples.logits_index[..., None], axis=1)
        logps, _ = made.answers.score(made.model, {"model": listener}, before, samples, made.temperature)
        return jnp.sum(logps * samples.mask())

    return total


def test_the_listener_trains_the_speaker():
    made = policy()
    samples, weights = played(made)
    params, total = weights["model"], two_agents(made, samples)
    learner = quick_jit(
        jax.value_and_grad(lambda p: jnp.sum(scoring.answer_logps(made, {"model": p}, samples) * samples.mask()))
    )
    value, whole = learner(params)
    by_agent = quick_jit(jax.value_and_grad(total, argnums=(0, 1)))
    both, (of_speaker, of_listener) = by_agent(params, params)
    assert float(both) == pytest.approx(float(value), rel=1e-5)
    whole, of_speaker, of_listener, start = jax.device_get((whole, of_speaker, of_listener, params))
    jax.tree.map(lambda w, s, o: np.testing.assert_allclose(w, s + o, atol=2e-4), whole, of_speaker, of_listener)

    # The gradient of the speaker's parameters alone equals finite differences.
    rng = np.random.default_rng(5)
    way = jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), start)
    size = np.float32(1e-2) / np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(way)))
    moved = [jax.tree.map(lambda x, d, e=e: x + e * size * d, start, way) for e in (-1, 1)]
    low, high = (by_agent(speaker, params)[0] for speaker in moved)
    slope = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(of_speaker), jax.tree.leaves(way), strict=True))
    assert abs(slope * size) > 1e-4
    assert float(high - low) / 2 == pytest.approx(float(slope * size), rel=0.03, abs=1e-5)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(of_speaker["message"]))


@pytest.mark.parametrize("kind", ["detached", pytest.param("frozen", marks=pytest.mark.nightly)])
def test_other_kinds_do_not_train_the_speaker(kind):
    made = policy(kind=kind)
    samples, weights = played(made)
    grads = quick_jit(jax.grad(two_agents(made, samples)))(weights["model"], weights["model"])
    of_adapter = {name: np.abs(x).max() for name, x in grads.pop("message").items()}
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(grads)) and of_adapter["queries"] == 0
    assert (of_adapter["weight"] > 0) == (kind == "detached")


def test_a_message_depends_on_the_card_unless_it_is_frozen():
    weights = weights_of(policy())
    said = jnp.asarray([[65, 66, -1], [65, 67, -1], [65, -1, -1], [65, -1, -1]])
    encode = quick_jit(messages.encode, static_argnums=0)
    soft, frozen = (np.asarray(encode(policy(kind=kind), weights["model"], said)) for kind in ("soft", "frozen"))
    assert soft.shape == frozen.shape == (4, 2, tiny_play.SHAPE["d_model"])
    assert len(np.unique(np.asarray(frozen), axis=0)) == 1
    assert np.abs(soft[0] - soft[1]).max() > 1e-3 and np.abs(soft[2] - soft[3]).max() == 0


def test_shuffled_messages_are_those_of_other_games():
    prompts, lengths = jnp.asarray([[1, 9], [2, 9], [3, 9]]), jnp.asarray([1, 2, 1])
    speaks = jnp.asarray([True, True, False])
    plain = np.asarray(messages.heard("soft", prompts, lengths, speaks))
    np.testing.assert_array_equal(plain, [[1, -1], [2, 9], [-1, -1]])
    np.testing.assert_array_equal(messages.heard("shuffled", prompts, lengths, speaks), plain[[2, 0, 1]])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env.context": "history"}, "config.env.message_tokens is 1 with env.context 'history'"),
        ({"env.name": "tic_tac_toe", "env.params": {}}, "but must be 0: tic_tac_toe has no speakers"),
        ({"model.lora.rank": 4}, "but must be 0 with several policies or adapters"),
        ({"algo.critic": "central"}, "a central critic joins the prompts of all seats"),
        ({"env.observation": "both"}, "env.observation must be 'text'"),
    ],
)
def test_what_cannot_have_messages_is_refused(changes, message):
    config = referential.get_config()
    validate.check(config)
    for field, value in changes.items():
        config.update_from_flattened_dict({field: value})
    with pytest.raises(ConfigError, match=message):
        validate.check(config)


@pytest.mark.quick
def test_forms_of_the_experiment():
    assert referential.get_config("named").env.params.messages == 2
    assert referential.get_config("shuffled+4").env.message_tokens == 4
    with pytest.raises(ValueError, match="form is 'loud', but must be one of none, named"):
        referential.get_config("loud")


@pytest.mark.quick
def test_forms_with_a_half_blind_executor_have_equal_room():
    forms = (*half_blind_messages.PLAIN, *half_blind_messages.SOFT, "soft+4")
    configs = {form: half_blind_messages.get_config(form) for form in forms}
    assert len({config.rollout.num_envs * config.rollout.unroll_length for config in configs.values()}) == 1
    assert configs["soft+4"].env.message_tokens == 4 and not configs["none"].env.message_tokens
    assert configs["named"].env.params.proposes and "roles" not in configs["all"].env.params
    validate.check(configs["soft"])
    with pytest.raises(ValueError, match="form is 'all.2', but must be one of none, named"):
        half_blind_messages.get_config("all+2")
