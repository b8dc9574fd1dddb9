"""Seating: the policy that acts for a seat at a turn, in rollouts, in matches and at the terminal."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.bots import make_bot
from marl_jax import setup as setups
from marl_jax.agents.answering import Decision
from marl_jax.agents.seating import Seating, seat_names
from marl_jax.errors import ConfigError
from marl_jax.evaluation import matches
from marl_jax.evaluation.matches import Match
from marl_jax.interactive.game_table import PolicySeat
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.schema import validate
from tests.marl_jax import tiny_play, tiny_run

pytestmark = pytest.mark.quick

GAME = games.make("tic_tac_toe")
FIRST, LATER = 0, 1
TABLE = ((FIRST, LATER), (FIRST, LATER))


def test_names_by_seat_role_and_turn():
    roles = ("planner", "executor")
    assert seat_names({"all": "main"}, roles) == [("main",), ("main",)]
    assert seat_names({"all": "first", "all@1": "later"}, roles) == [("first", "later")] * 2
    assert seat_names({"all": "a", "all@1": "b", "executor": "c"}, roles) == [("a", "b"), ("c",)]
    assert seat_names({"planner": "a", "planner@3": "b", "seat_1": "bot:solver"}, roles) == [
        ("a", "a", "a", "b"), ("bot:solver",),
    ]  # fmt: skip


def test_the_last_policy_of_a_seat_stays():
    seating = Seating(((0, 1, 2), (3,), (-1,)), (None, None, make_bot(GAME, "random")))
    turns = jnp.arange(5)
    assert seating.policy(jnp.zeros(5, int), turns).tolist() == [0, 1, 2, 2, 2]
    assert seating.policy(jnp.ones(5, int), turns).tolist() == [3] * 5
    assert seating.policy(jnp.full(5, 2), turns).tolist() == [-1] * 5
    assert seating.open_seats() == (0, 1) and seating.policies(0) == (0, 1, 2) and seating.has_bot(2)
    swapped = seating.swapped()
    assert swapped.table == ((3,), (-1,), (0, 1, 2)) and swapped.has_bot(1) and not swapped.has_bot(2)


def test_further_seats_get_the_policies_of_the_first_in_turn():
    seating = Seating(((0, 1), (2,)))
    assert seating.resized(5).table == ((0, 1), (2,), (0, 1), (2,), (0, 1)) and seating.resized(1).table == ((0, 1),)
    assert seating.resized(2).table == seating.table
    with_bot = Seating(((0,), (-1,)), (None, make_bot(GAME, "random"))).resized(3)
    assert [with_bot.has_bot(seat) for seat in range(3)] == [False, True, False]


# Rollouts, matches and the terminal


@dataclasses.dataclass(frozen=True, eq=False)
class ByNumber:
    """A team without a model: policy 0 takes the lowest legal action, policy 1 the highest."""

    width: int = 1
    critic: str = "none"
    medium: None = None
    message: str = ""
    message_tokens: int = 0

    @property
    def prompts(self):
        return tiny_play.team(tiny_play.policy(), tiny_play.prompt()).prompts

    def prepare_for_sampling(self, weights):
        return weights

    def acting_params(self, weights):
        return weights

    def playable(self, action, legal, keys):
        return action

    def act(self, ready, tokens, lengths, legal, keys, ids, temperature=None, central=None, candidates=1, media=None):
        lowest, highest = jnp.argmax(legal, axis=1), 8 - jnp.argmax(legal[:, ::-1], axis=1)
        action = jnp.where(ids == FIRST, lowest, highest).astype(jnp.int32)
        nothing = jnp.zeros((*action.shape, 1))
        return Decision(action, action[:, None] + 49, jnp.ones_like(action), nothing, nothing[:, 0], action < 0)


def expected_actions(turns):
    """Both seats take the lowest free cell at their first turn, and the highest one from then on."""
    free, taken = list(range(9)), []
    for turn in range(turns):
        taken.append(free.pop(0 if turn < 2 else -1))
    return taken


def test_a_rollout_asks_the_policy_of_the_turn():
    roll = tiny_play.rollout(GAME, tiny_play.policy(), 4, 8, learns=(True, False))
    roll = dataclasses.replace(roll, team=ByNumber(), seating=Seating(TABLE))
    games = roll.fresh_games(jax.random.key(0))
    samples, finished, _ = jax.device_get(jax.jit(roll.play)({}, games, jax.random.key(1)))
    in_time = lambda x: x.reshape(-1)[samples.completion_at]  # noqa: E731
    turn, policy, action = (np.asarray(in_time(x)) for x in (samples.turn, samples.policy[:, None], samples.action))
    np.testing.assert_array_equal(policy, np.where(turn < 2, FIRST, LATER))
    length = int(np.argmax(finished.ended[:, 0])) + 1
    assert 4 < length < 9  # the first policy acts again in the first turns of a second game
    assert action[:length, 0].tolist() == expected_actions(length)
    assert action[length : length + 2, 0].tolist() == [0, 1]
    # Only the first policy is trained.
    weights = in_time(samples.loss_weights)[: roll.turns]
    np.testing.assert_array_equal(weights, turn[: roll.turns] < 2)


def test_a_match_asks_the_policy_of_the_turn():
    match = Match(GAME, (SeatedTeam(ByNumber(), Seating(TABLE)),))
    played = match(({},), matches.alone(3, 2), jax.random.key(0), 0.0)
    length = int(played.length[0])
    assert played.action[:length, 0].tolist() == expected_actions(length)


def test_a_match_with_one_policy_for_each_seat_and_a_bot():
    minimax = make_bot(GAME, "minimax")
    match = Match(GAME, (SeatedTeam(ByNumber(), Seating(((LATER,), (-1,)), (None, minimax))),))
    played = jax.device_get(match(({},), matches.alone(4, 2), jax.random.key(0), 0.0))
    for row in range(4):
        free = set(range(9))
        for turn in range(int(played.length[row])):
            action = int(played.action[turn, row])
            assert turn % 2 or action == max(free)
            free.remove(action)
    assert (played.total.agent[:, 1] >= 0).all() and not played.failed.any()


def test_at_the_terminal_too():
    seat = PolicySeat(GAME, SeatedTeam(ByNumber(), Seating(TABLE)), {})
    state, key, actions = GAME.reset(jax.random.key(0)), jax.random.key(0), []
    for _ in range(4):
        actions.append(int(seat.act(state, key)))
        seat.observe(state, actions[-1], state)  # turns are counted from observations, independent of the position
    assert actions == [0, 0, 8, 8]


# Config


def config(agents, *policies):
    made = tiny_run.get_config()
    made.model.lora.rank = 2
    with made.unlocked():
        made.agents = agents
        made.policies = dict.fromkeys(policies, made.policies.main)
    return made


def test_a_config_names_policies_by_turn():
    made = config({"all": "first", "all@1": "later"}, "first", "later")
    validate.check(made)
    setup = setups.make(made)
    names = [setup.team.policies[p] for p in setup.seating.table[0]]
    assert names == ["first", "later"] and setup.seating.table[0] == setup.seating.table[1]
    assert setup.rollout.seating is setup.seated().seating is setup.seating


@pytest.mark.parametrize(
    "agents, message",
    [
        ({"all": "first", "all@x": "later"}, "config.agents.all@x has turn 'x', but must have an integer >= 0"),
        ({"all": "first", "seat_7@1": "later"}, "config.agents.seat_7@1 is not a seat of tic_tac_toe"),
        ({"all@1": "first", "seat_0": "later"}, "config.agents has no policy for seat_1, but must name every seat"),
        (
            {"seat_0": "first", "seat_0@1": "bot:random", "seat_1": "later"},
            "config.agents has first, bot:random as turns of seat_0, but must have policies only, one bot or one",
        ),
    ],
)
def test_refused(agents, message):
    with pytest.raises(ConfigError) as refused:
        validate.check(config(agents, "first", "later"))
    assert message in str(refused.value)
