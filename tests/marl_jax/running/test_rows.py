"""Rows of a run's files: one wrong field is enough to leave a row out."""

import pytest

from marl_jax.running import rows
from tests.marl_jax import tiny_page

pytestmark = pytest.mark.quick

GAME = [("step", "1"), ("players", [1, 2]), ("outcome", None), ("result", 3), ("winner", "1"), ("scores", [1.0]),
        ("scores", ["a", "b"]), ("roles", [1]), ("start_svg", 3), ("moves", [None])]  # fmt: skip
MOVE = [("player", "0"), ("prompt", None), ("answer", 3), ("action", 4), ("error", 4), ("svg", 1), ("reward", ["x"]),
        ("reward", None), ("value", "high")]  # fmt: skip


@pytest.mark.parametrize(("field", "wrong"), GAME)
def test_a_game_with_a_wrong_field_is_left_out(field, wrong):
    game = tiny_page.game(1)
    assert rows.is_game(game) and not rows.is_game({**game, field: wrong})


@pytest.mark.parametrize(("field", "wrong"), MOVE)
def test_a_game_with_a_wrong_move_is_left_out(field, wrong):
    first, second = tiny_page.game(1)["moves"]
    assert not rows.is_game({**tiny_page.game(1), "moves": [first, {**second, field: wrong}]})
