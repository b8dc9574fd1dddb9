"""Lookup: each input alone leaves every answer equally likely, and its media show what the text says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.lookup.draw import recordings
from envs.games.lookup.rules import QUESTIONS, ROW, TAKES, TONE, VALUE
from envs.games.registry import make, make_medium, make_text
from envs.games.template import Image

pytestmark = pytest.mark.quick


def drawn(game, n=4096):
    return jax.jit(jax.vmap(game.reset))(jax.random.split(jax.random.key(0), n))


def test_one_input_alone_leaves_all_answers_equally_likely():
    game = make("lookup", rows=3)
    states = drawn(game)
    right = np.asarray(jax.vmap(game.right)(states))
    for seen in (states.heard, states.values[:, 0] * 3 + states.values[:, 1]):
        for one in np.unique(seen):
            counts = np.bincount(right[np.asarray(seen) == one], minlength=3)
            assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 14  # chi-square with 2 degrees, p = 0.001
    both = np.asarray(states.values)[np.arange(len(right)), np.asarray(states.heard)]
    np.testing.assert_array_equal(right, both)


def test_kinds_of_questions_need_other_inputs():
    game = make("lookup", questions="mixed")
    states = jax.device_get(drawn(game, 512))
    assert set(states.question) == set(QUESTIONS["mixed"])
    right, rows = np.asarray(jax.vmap(game.right)(states)), np.arange(512)
    np.testing.assert_array_equal(right[states.question == TONE], states.heard[states.question == TONE])
    np.testing.assert_array_equal(
        right, np.where(states.question == TONE, states.heard, states.values[rows, states.key])
    )
    assert (states.heard != states.key)[states.question == ROW].any() and (states.question == VALUE).any()


def test_repeated_values_change_only_the_table():
    states, repeated = (jax.device_get(drawn(make("lookup", repeats=repeats), 512)) for repeats in (False, True))
    for name in ("question", "key", "heard", "take"):
        np.testing.assert_array_equal(getattr(states, name), getattr(repeated, name))
    assert {len(set(values)) for values in states.values.tolist()} == {6}
    assert {len(set(values)) for values in repeated.values.tolist()} == {1, 2, 3, 4, 5, 6}
    assert set(repeated.values.ravel().tolist()) == set(range(6))
    for style, word in (("full", "no value occurs twice"), ("compact", "different values")):
        rules = [make_text(make("lookup", repeats=repeats), style).rules for repeats in (False, True)]
        assert word in rules[0] and word not in rules[1]


@pytest.mark.parametrize("board", ["table", "picture"])
@pytest.mark.parametrize("hidden", ["", "sound", "table"])
def test_media_show_what_the_text_says(board, hidden):
    game = make("lookup", rows=4, questions="mixed", hidden=hidden, board=board)
    medium, text, states = make_medium(game), make_text(game, "brief"), drawn(game, 512)
    tail = text.with_media(medium, ["<|spare0|>", "<|spare0|>"])
    codes, said, left = jax.device_get(
        jax.vmap(lambda s: (medium.codes(s, 0), text.indices(s, jnp.int32(0)), tail.indices(s, jnp.int32(0))))(states)
    )
    tone = np.where(codes[:, 0] == 4 * TAKES, -1, codes[:, 0] // TAKES)  # takes of one tone sound alike
    seen = [(t, *c[1:], *q) for t, c, q in zip(tone.tolist(), codes.tolist(), left.tolist(), strict=True)]
    pairs = set(zip(seen, map(tuple, said.tolist()), strict=True))
    assert len(pairs) == len({s for s, _ in pairs}) == len({t for _, t in pairs}) > 4
    image = medium.host_pixels(codes[0])
    assert image.dtype == np.uint8 and image.ndim == 3 and image.std() > 0


def test_places_are_interleaved_or_prepended():
    text = make_text(make("lookup"), "full")
    medium = make_medium(text.game)
    kinds = {
        order: [isinstance(p, Image) for p in text.with_media(medium, ["a", "b"], order=order).observation.pieces]
        for order in ("interleaved", "prepended")
    }
    assert kinds["interleaved"] == [False, True, True, False] and kinds["prepended"] == [True, True, False, False]
    assert [p.text for p in text.with_media(medium, ["q"]).observation.pieces[:1]] == ["q"]
    both = text.with_media(medium, ["a", "b"], "both").observation.pieces
    assert both[2:] == text.observation.pieces


def test_tones_differ_in_pitch_and_takes_in_everything_else():
    sounds = recordings(6)
    assert sounds.shape == (6 * TAKES + 1, 2560) and np.abs(sounds).max() <= 1 and not sounds[-1].any()
    pitch = np.abs(np.fft.rfft(sounds[:-1], axis=1)).argmax(axis=1).reshape(6, TAKES) * 16_000 / 2560
    assert (pitch.max(axis=1)[:-1] < pitch.min(axis=1)[1:]).all() and len(np.unique(sounds, axis=0)) == len(sounds)
