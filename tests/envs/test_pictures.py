"""Pictures of games: pixels, patches, and what they show to whom."""

import dataclasses
import io
import struct
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import glyphs
from envs.games.entry import GAMES
from envs.games.picture import CELL, MEAN, PATCH, STD, Picture, Tile, png
from envs.games.registry import make, make_medium, make_text
from models.tokenizers.byte import ByteTokenizer
from tests.models.tiny_models import quick_jit as jit

VARIANTS = {
    "tic_tac_toe": ("tic_tac_toe", {}),
    "connect_four": ("connect_four", {}),
    "hanabi": ("hanabi", {}),
    "hanabi_small": ("hanabi", dict(preset="small", players=3)),
    "kuhn": ("kuhn", {}),
    "leduc": ("leduc", {}),
    "leduc_plain": ("leduc", dict(suits=False)),
    "matrix": ("matrix", {}),
    "referential": ("referential", {}),
    "plan_path": ("plan_path", dict(size=5, n_train=16, n_test=4)),
    "plan_path_local": ("plan_path", dict(size=5, n_train=16, n_test=4, roles="two", view="local")),
    "sokoban": ("sokoban", dict(n_train=16, n_test=4)),
    "sokoban_local": ("sokoban", dict(n_train=16, n_test=4, roles="two", view="local")),
    "sudoku": ("sudoku", dict(n_train=16, n_test=4)),
    "pursuit": ("pursuit", {}),
    "pursuit_local": ("pursuit", dict(view="local")),
    "warehouse": ("warehouse", {}),
    "warehouse_local": ("warehouse", dict(view="local")),
}
PLACE = "<|spare0|>"


def play(game, picture, texts, n=24, turns=12):
    """Return codes, pixels and text indices in positions of random play, the seats to move, and what still runs."""

    def step(state, key):
        action = jax.random.categorical(key, jnp.log(jax.vmap(game.legal)(state))).astype(jnp.int32)
        return jax.vmap(game.step)(state, action)[0], state

    def seen(state):
        seat = game.player(state)
        codes = picture.codes(state, seat)
        return codes, picture.pixels(codes), [text.indices(state, seat) for text in texts], seat, ~game.done(state)

    def positions():
        states = jax.vmap(game.reset)(jax.random.split(jax.random.key(1), n))
        states = jax.lax.scan(step, states, jax.random.split(jax.random.key(0), turns))[1]
        return jax.vmap(seen)(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states))

    return jax.device_get(jit(positions)())


def test_every_game_has_pictures():
    assert {name for name, _ in VARIANTS.values()} == set(GAMES.names()) - {"lookup"}  # tests/envs/test_lookup.py
    assert all(GAMES.get(name).medium for name in GAMES.names())


@pytest.mark.nightly_for(
    "*-compact", "hanabi-full", "leduc-full", "sokoban-full", "pursuit-full", "warehouse*-full", "plan_path-full"
)
@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_picture_shows_exactly_what_the_text_says(variant, style):
    name, params = VARIANTS[variant]
    game = make(name, **params)
    picture, text = make_medium(game, style), make_text(game, style)
    tail = text.with_media(picture, [PLACE])
    codes, drawn, (said, left), seats, running = play(game, picture, (text, tail))

    # The host draws the same pixels.
    assert drawn.dtype == np.uint8 and drawn.shape[1:] == (*picture.size, 3)
    assert codes.max() < len(picture.tiles)
    for i in range(0, len(codes), 7):
        np.testing.assert_array_equal(drawn[i], picture.host_pixels(codes[i]))

    # Two positions have the same picture, for the same seat and with the same rest of the prompt, if and only if they
    # have the same text. In the compact text of connect four, only the text shows threats.
    if (name, style) == ("connect_four", "compact"):
        return
    of_text, of_picture = {}, {}
    for i in np.flatnonzero(running):
        read = seats[i], said[i].tobytes()
        seen = seats[i], codes[i].tobytes(), left[i].tobytes()
        assert of_text.setdefault(read, seen) == seen, "the picture shows more than the text"
        assert of_picture.setdefault(seen, read) == read, "the picture shows less than the text"
    assert len(of_text) > 1


@pytest.mark.quick
def test_patches_have_the_order_of_the_processor():
    # The formula of Qwen2.5-VL, applied to the whole picture instead of to tiles.
    tiles = tuple(Tile(sign, "#a01234", paper) for sign, paper in (("A", "#ffffff"), ("7", "#00ff10"), ("", "#0000ff")))
    picture = Picture((2, 3), tiles, lambda state, seat: state)
    codes = picture.codes(jnp.array([0, 1, 2, 1, 1, 0]), 0)
    colors = (picture.host_pixels(codes).astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    frames = np.repeat(colors.transpose(2, 0, 1)[None], 2, axis=0)
    t, h, w = picture.patch_grid
    split = frames.reshape(t, 2, 3, h // 2, 2, PATCH, w // 2, 2, PATCH)
    expected = split.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1)
    np.testing.assert_array_equal(np.asarray(jax.jit(picture.patches)(codes)), expected)


def test_hidden_cards_do_not_reach_the_picture():
    game = make("hanabi", preset="small")
    picture, state = make_medium(game), jit(game.reset)(jax.random.key(0))
    codes = jit(picture.codes)
    other = state._replace(hands=state.hands.at[0].set((state.hands[0] + 1) % 10), deck=state.deck[::-1])
    np.testing.assert_array_equal(codes(state, 0), codes(other, 0))
    assert (codes(state, 1) != codes(other, 1)).any()


@pytest.mark.quick
def test_png_is_read_by_another_decoder():
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (28, 56, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(image.open(io.BytesIO(png(pixels)))), pixels)


def test_file_is_a_png_of_the_picture():
    game = make("kuhn")
    picture, state = make_medium(game), jit(game.reset)(jax.random.key(0))
    data = picture.file(state, 1)
    width, height = struct.unpack(">II", data[16:24])
    assert (height, width) == picture.size == (2 * CELL, 3 * CELL)
    size = struct.unpack(">I", data[33:37])[0]
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(height, -1)
    expected = picture.host_pixels(picture.codes(state, 1)).reshape(height, -1)
    np.testing.assert_array_equal(rows[:, 1:], expected)


@pytest.mark.quick
def test_tiles():
    tile = Tile("A", "#000000", "#ffffff").pixels()
    assert tile.shape == (CELL, CELL, 3)
    ink = (tile == 0).all(-1)
    assert ink.sum() == 9 * glyphs.bitmap("A").sum()  # three times as high and wide
    assert not ink[:2].any() and not ink[:, :2].any()
    with pytest.raises(ValueError, match="has no 'é'"):
        Tile("é").pixels()
    with pytest.raises(ValueError, match="must fit into 24 by 24"):
        Tile("TOO LONG").pixels()


def test_many_tiles_need_wider_codes():
    tiles = tuple(Tile(paper=f"#{i:06x}") for i in range(300))
    picture = Picture((1, 1), tiles, lambda state, seat: state[None])
    assert picture.codes(jnp.int32(299), 0).dtype == jnp.uint16
    assert tuple(picture.host_pixels(picture.codes(jnp.int32(299), 0))[0, 0]) == (0, 1, 43)


@pytest.mark.quick
@pytest.mark.parametrize("style", ["full", "compact", "brief"])
@pytest.mark.parametrize("roles", ["one", "two"])
def test_prompts_with_a_place_for_the_picture(style, roles):
    game = make("plan_path", size=5, n_train=4, n_test=4, roles=roles)
    text, tokenizer = make_text(game, style), ByteTokenizer()
    (place,) = tokenizer.encode(PLACE)
    state, plain = game.reset(jax.random.key(0)), text.compile(tokenizer)
    for observation in ("image", "both"):
        prompt = text.with_media(make_medium(game, style), [PLACE * 25], observation).compile(tokenizer)
        tokens, length = jax.jit(prompt.opening)(state, 0)
        tokens = tokens[:length].tolist()
        assert tokens == tokenizer.encode(prompt.opening_text(state, 0))
        assert tokens.count(place) == 25
        assert place not in prompt.prefix  # which is read without pictures
        without = prompt.opening_text(state, 0).replace(PLACE, "")
        assert (without == plain.opening_text(state, 0)) == (observation == "both")


def test_a_game_without_pictures_is_refused(monkeypatch):
    entry = dataclasses.replace(GAMES.get("kuhn"), medium=None)
    monkeypatch.setattr(GAMES, "get", lambda name: entry)
    with pytest.raises(ValueError, match="has no pictures"):
        make_medium(make("kuhn"))


def test_observation_is_checked():
    with pytest.raises(ValueError, match="observation is 'text', but must be one of: image, both"):
        make_text(make("kuhn")).with_media(make_medium(make("kuhn")), [PLACE], "text")
