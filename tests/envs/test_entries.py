"""What each game brings: bots, parameters, drawings; and a game and a bot that another package adds."""

import dataclasses
import subprocess
import sys
import types
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from envs.games import view
from envs.games.bots import BOTS, UniformBot, bot_names, make_bot
from envs.games.entry import GAMES, GameEntry
from envs.games.game import Game, Reward, keep_if_done, legal_or_end
from envs.games.registry import make, make_text, symmetry
from envs.games.roles import TwoRole
from envs.games.template import Table, Template
from envs.games.text import Text

pytestmark = pytest.mark.quick

SMALL = {"n_train": 4, "n_test": 2}
OWN_BOTS = {
    "tic_tac_toe": ("minimax",),
    "connect_four": ("search",),
    "hanabi": ("convention",),
    "kuhn": ("equilibrium",),
    "leduc": ("equilibrium",),
    "matrix": ("optimal",),
    "referential": ("optimal",),
    "plan_path": ("solver",),
    "sokoban": ("solver",),
    "sudoku": ("solver",),
    "pursuit": ("solver",),
    "warehouse": ("planner",),
    "lookup": ("optimal",),
}


def small(name: str, **params) -> Game:
    return make(name, **(SMALL if GAMES.get(name).rules.has_levels else {}), **params)


@pytest.mark.nightly_for("kuhn", "leduc", "warehouse", "pursuit", "hanabi", "sudoku", "connect_four", "sokoban")
@pytest.mark.parametrize("name", GAMES)
def test_bots_by_name(name):
    game = small(name)
    own = tuple(GAMES.get(name).bots)
    assert bot_names(name)[0] == "random" and bot_names(name)[len(bot_names(name)) - len(own) :] == own
    assert set(own) >= set(OWN_BOTS.get(name, ()))
    state = jax.jit(game.reset)(jax.random.key(0))
    legal = jax.jit(game.legal)(state)
    for bot in bot_names(name):
        assert legal[jax.jit(make_bot(game, bot).act)(state, jax.random.key(0))]
    with pytest.raises(ValueError, match=f"{name} has no bot 'oracle'; its bots are: {', '.join(bot_names(name))}"):
        make_bot(game, "oracle")


@pytest.mark.parametrize("name", GAMES)
def test_parameters_in_which_an_evaluation_may_differ(name):
    """Every reward that can be set is one, level parameters exist, and no rule is among them."""
    entry = GAMES.get(name)
    fields = {field.name for field in dataclasses.fields(entry.rules)}
    of_roles = {field.name for field in dataclasses.fields(TwoRole)} if entry.rules.has_levels else set()
    assert entry.level_params <= fields and entry.reward_params <= fields | of_roles
    assert {field for field in fields if field.endswith("_reward")} <= entry.reward_params
    assert not entry.level_params & entry.reward_params
    assert bool(entry.level_params) == entry.rules.has_levels
    if entry.rules.has_levels:
        assert {entry.rules.success_reward, *entry.rules.process_rewards} <= entry.reward_params
    rules = {"players", "colors", "ranks", "hand_size", "mask_invalid", "end_on_deadlock", "view", "radius"}
    assert not rules & (entry.level_params | entry.reward_params)


def test_the_default_answers_of_a_game():
    game, puzzle = make("tic_tac_toe"), small("sudoku")
    state = game.reset(jax.random.key(0))
    assert not game.solvable and not game.has_levels and game.held_out() is game
    assert game.seat_names == ("seat_0", "seat_1") and game.roles == () and game.action_texts == game.action_names
    assert not game.success(state) and not game.lost(state) and game.moves(jnp.int32(1))
    assert game.score(state) is None and game.visible(state, 0) is None
    assert puzzle.solvable and puzzle.has_levels and puzzle.held_out() == small("sudoku", part="test")


def test_two_roles_answer_as_their_puzzle():
    game = small("sokoban", roles="two")
    assert game.solvable and game.has_levels and game.seat_names == ("planner", "executor")
    assert game.held_out() == small("sokoban", roles="two", part="test")
    assert [bool(game.moves(jnp.int32(seat))) for seat in (0, 1)] == [False, True]
    state = game.reset_level(0)
    stuck = state._replace(inner=state.inner._replace(deadlocked=jnp.bool_(True)))
    assert not game.lost(state) and game.lost(stuck) and game.game.lost(stuck.inner)


def test_names_import_no_game():
    code = "import sys; from envs.games.entry import GAMES; assert GAMES.names(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "envs.games.entry" in loaded and not [module for module in loaded if module.endswith(".rules")]


# ------------------------------------------------------------------------------------------- what others can add


class Heap(NamedTuple):
    """A heap of matches and who moves."""

    left: jax.Array
    player: jax.Array


@dataclasses.dataclass(frozen=True)
class Matches(Game):
    """Take one to three matches; who takes the last one wins."""

    name: ClassVar[str] = "matches"
    n_players: ClassVar[int] = 2
    n_actions: ClassVar[int] = 3
    action_names: ClassVar[tuple[str, ...]] = ("1", "2", "3")
    competitive: ClassVar[bool] = True
    heap: int = 7

    @property
    def max_turns(self):
        return self.heap

    def reset(self, key):
        return Heap(jnp.int32(self.heap), jnp.int32(0))

    def player(self, state):
        return state.player

    def legal(self, state):
        return legal_or_end(jnp.arange(1, 4) <= state.left, self.done(state))

    def step(self, state, action):
        done = self.done(state)
        new = keep_if_done(done, state, Heap(state.left - action - 1, 1 - state.player))
        won = jnp.where(self.done(new) & ~done, 1.0, 0.0) * jnp.where(jnp.arange(2) == state.player, 1.0, -1.0)
        return new, Reward(jnp.float32(0), won, jnp.zeros(2))

    def done(self, state):
        return state.left == 0


@dataclasses.dataclass(frozen=True)
class Modulo:
    """Leaves a multiple of four where it can."""

    def act(self, state, key):
        return jnp.where(state.left % 4 > 0, state.left % 4 - 1, 0)


def matches_text(game: Matches, style: str) -> Text:
    heap = Template((Table(tuple(map(str, range(game.heap + 1)))),))
    return Text(game, style, "", ("", ""), heap, lambda state, player: state.left[None], ("", ""), game.action_names)


MATCHES = GameEntry(
    rules=Matches,
    text=matches_text,
    draw=types.SimpleNamespace(board=lambda state, player: "|" * int(state.left), svg=lambda state, player: "<svg/>"),
    bots={"modulo": lambda game: Modulo()},
)


@pytest.fixture
def plugins(monkeypatch):
    """Registries that forget what a test adds."""
    for registry in (GAMES, BOTS):
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def test_a_game_from_another_package(plugins):
    GAMES.add("matches", MATCHES)
    game = make("matches", heap=6)
    state = game.reset(jax.random.key(0))
    assert make_text(game).observe(state, 0) == "6" and view.board(game, state) == "||||||"
    assert symmetry(game) is None and bot_names("matches") == ("random", "modulo")
    assert int(make_bot(game, "modulo").act(state, jax.random.key(0))) == 1
    with pytest.raises(ValueError, match="matches has no parameter 'size'; its parameters are: heap"):
        make("matches", size=3)
    with pytest.raises(ValueError, match=r"unknown game 'matchs'; .*, matches; did you mean matches\?"):
        make("matchs")


def test_a_bot_from_another_package_sits_beside_the_own_ones(plugins):
    BOTS.add("sokoban/uniform", UniformBot)
    assert bot_names("sokoban") == ("random", "uniform", "solver") and bot_names("sudoku") == ("random", "solver")
    puzzle, roles = small("sokoban"), small("sokoban", roles="two")
    assert make_bot(puzzle, "uniform") == UniformBot(puzzle)
    assert make_bot(roles, "uniform").bot == UniformBot(roles.game)


@pytest.mark.parametrize("name", ["solver", "random"])
def test_a_bot_cannot_replace_one_that_a_game_has(plugins, name):
    BOTS.add(f"sokoban/{name}", UniformBot)
    with pytest.raises(ValueError, match=f"bot 'sokoban/{name}' already exists"):
        bot_names("sokoban")
