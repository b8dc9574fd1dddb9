"""Small games looked at whole: values, best responses and exploitability of a policy without sampling anything.

A game that can be dealt by number and says what a seat knows (`Game.n_deals`, `Game.information`) has a finite tree:
every deal, every sequence of legal actions. States in which the seat to move knows the same are an information set, and
a policy is one distribution for each of them.

    tree = build(game)
    policy = tree.uniform()                         # float64 [I, A]
    nash_conv(tree, policy)                         # sum over the seats of what a best response would gain
    exploitability(tree, policy)                    # that divided by the number of seats
    policy = solve(tree, iterations=1000)           # close to an equilibrium

Axis letters: N nodes of the tree, I information sets, A actions, P players. All arithmetic is NumPy's in float64.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import exact
from envs.games.game import Game, State

CHUNK = 512  # states per call of the rules, so that they are compiled for one shape


@dataclasses.dataclass(frozen=True, eq=False)
class GameTree:
    """All histories of a game, those of one length side by side.

    levels       the nodes of each length, as slices
    information  int [N], the information set of the seat that moves; -1 at the end
    children     int [N, A], -1 where an action is not legal
    returns      float64 [N, P], what the seats have been paid on the way
    chance       float64 [N], the probability of the deal

    of information sets:
    codes        int [I], their numbers as the game gives them (`Game.information`), by seat and then in rising order
    seat, turn   int [I], who moves, and after how many moves
    legal        bool [I, A]
    states       a state of each, stacked
    """

    game: Game
    levels: tuple[slice, ...]
    information: np.ndarray
    children: np.ndarray
    returns: np.ndarray
    chance: np.ndarray
    codes: np.ndarray
    seat: np.ndarray
    turn: np.ndarray
    legal: np.ndarray
    states: Any

    def uniform(self) -> np.ndarray:
        """The policy that plays every legal action with the same probability: float64 [I, A]."""
        return self.legal / self.legal.sum(1, keepdims=True)

    @functools.cached_property
    def moving(self) -> tuple[np.ndarray, ...]:
        """Of each level, the numbers of the nodes at which the game has not ended."""
        return tuple(np.flatnonzero(self.information[level] >= 0) + level.start for level in self.levels)


@functools.cache
def build(game: Game) -> GameTree:
    """The tree of a game; kept, because it is the same at every call."""
    if not game.n_deals:
        raise ValueError(f"{game.name} is too large to be looked at whole, but must be games with a number of deals")
    look = jax.jit(jax.vmap(functools.partial(_look, game)))
    states = _in_chunks(jax.jit(jax.vmap(game.deal)), np.arange(game.n_deals, dtype=np.int32))
    returns = np.zeros((game.n_deals, game.n_players))
    chance = np.full(game.n_deals, 1.0 / game.n_deals)
    parts: dict[str, list] = {name: [] for name in ("code", "seat", "legal", "children", "returns", "chance", "states")}
    levels, start = [], 0
    while len(chance):
        seat, code, legal, after, paid = _in_chunks(look, states)
        count, (node, action) = len(chance), np.nonzero(legal)
        children = np.full(legal.shape, -1)
        children[node, action] = start + count + np.arange(len(node))
        found = (np.where(legal.any(1), code, -1), seat, legal, children, returns, chance, states)
        for name, value in zip(parts, found, strict=True):
            parts[name].append(value)
        levels.append(slice(start, start + count))
        start += count
        states = jax.tree.map(lambda x, at=(node, action): x[at], after)
        returns, chance = returns[node] + paid[node, action], chance[node]
    joined = {name: np.concatenate(parts[name]) for name in parts if name != "states"}
    states = jax.tree.map(lambda *xs: np.concatenate(xs), *parts["states"])
    return _with_information_sets(game, tuple(levels), joined, states)


def _look(game: Game, state):
    """Who moves, what it knows, what is legal (nothing at the end), and for every action what follows and is paid."""
    seat = game.player(state)
    legal = game.legal(state) & ~game.done(state)
    after, reward = jax.vmap(game.step, (None, 0))(state, jnp.arange(game.n_actions))
    return seat, game.information(state, seat), legal, after, reward.team[:, None] + reward.agent


def _in_chunks(function, states):
    """`function` of states [n, …], as NumPy arrays; calls have CHUNK of them each, the last filled up."""
    n = len(jax.tree.leaves(states)[0])
    parts = []
    for start in range(0, n, CHUNK):
        part = jax.tree.map(lambda x, at=start: x[at : at + CHUNK], states)
        size = len(jax.tree.leaves(part)[0])
        filled = jax.tree.map(lambda x, size=size: np.pad(x, ((0, CHUNK - size), *((0, 0),) * (x.ndim - 1))), part)
        with jax.ensure_compile_time_eval():  # a bot may ask for the tree while a program is traced
            parts.append(jax.tree.map(lambda x, size=size: x[:size], jax.device_get(function(filled))))
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def _with_information_sets(game: Game, levels: tuple[slice, ...], nodes: dict[str, np.ndarray], states) -> GameTree:
    depth = np.repeat(np.arange(len(levels)), [level.stop - level.start for level in levels])
    moving = np.flatnonzero(nodes["code"] >= 0)
    keys = np.stack([nodes["seat"], nodes["code"]], axis=1)[moving]
    found, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    example, which = moving[first], which.reshape(-1)
    same = (depth[moving] == depth[example][which]) & (nodes["legal"][moving] == nodes["legal"][example][which]).all(1)
    if not same.all():
        raise ValueError(f"{game.name}: states that a seat cannot tell apart differ in their turn or legal actions")
    information = np.full(len(depth), -1)
    information[moving] = which
    return GameTree(
        game=game,
        levels=levels,
        information=information,
        children=nodes["children"],
        returns=nodes["returns"],
        chance=nodes["chance"],
        codes=found[:, 1],
        seat=found[:, 0],
        turn=depth[example],
        legal=nodes["legal"][example],
        states=jax.tree.map(lambda x: x[example], states),
    )


# ------------------------------------------------------------------------------------------ what a policy is worth


def expected_returns(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """What the seats earn on average where all play `policy` (float64 [I, A]): float64 [P]."""
    return tree.chance[tree.levels[0]] @ _values(tree, policy)[tree.levels[0]]


def best_response(tree: GameTree, policy: np.ndarray, seat: int) -> tuple[float, np.ndarray]:
    """What a seat can earn at most against `policy` in all others, and the action it then takes: int [I].

    The action is -1 in the information sets of other seats.
    """
    reach = _reach(tree, policy, without=seat)
    value, action = tree.returns[:, seat].copy(), np.full(len(tree.seat), -1)
    for nodes in reversed(tree.moving):
        sets, after = tree.information[nodes], _of_children(tree, value, nodes)
        own = tree.seat[sets] == seat
        # What each action is worth in an information set: over its states, by how likely the others lead there.
        worth = np.zeros(tree.legal.shape)
        np.add.at(worth, sets[own], reach[nodes[own], None] * after[own])
        best = np.argmax(np.where(tree.legal, worth, -np.inf), axis=1)
        action[sets[own]] = best[sets[own]]
        chosen = np.take_along_axis(after, best[sets][:, None], axis=1)[:, 0]
        value[nodes] = np.where(own, chosen, np.sum(policy[sets] * after, axis=1))
    return float(tree.chance[tree.levels[0]] @ value[tree.levels[0]]), action


def nash_conv(tree: GameTree, policy: np.ndarray) -> float:
    """What the seats could gain by best responses, one seat at a time, added up; 0 in an equilibrium and only there."""
    values = expected_returns(tree, policy)
    return sum(best_response(tree, policy, seat)[0] - float(values[seat]) for seat in range(len(values)))


def exploitability(tree: GameTree, policy: np.ndarray) -> float:
    """NashConv by the number of players, as OpenSpiel defines it."""
    return nash_conv(tree, policy) / tree.game.n_players


def solve(tree: GameTree, iterations: int) -> np.ndarray:
    """A policy close to an equilibrium of a zero-sum game of two: float64 [I, A], by CFR+.

    Regrets are kept at 0 or above, seats are updated in turn, and later policies count more in the average.
    """
    regrets, total = np.zeros(tree.legal.shape), np.zeros(tree.legal.shape)
    for iteration in range(1, iterations + 1):
        for seat in range(tree.game.n_players):
            policy = _matching(tree, regrets)
            values, reach = _values(tree, policy)[:, seat], _reach(tree, policy, without=seat)
            for nodes in tree.moving:
                nodes = nodes[tree.seat[tree.information[nodes]] == seat]
                gain = _of_children(tree, values, nodes) - values[nodes, None]
                np.add.at(regrets, tree.information[nodes], reach[nodes, None] * gain)
            regrets = np.where(tree.legal, np.maximum(regrets, 0.0), 0.0)
        policy = _matching(tree, regrets)
        total += iteration * _own_reach(tree, policy)[:, None] * policy
    weight = total.sum(1, keepdims=True)
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), tree.uniform())


def _matching(tree: GameTree, regrets: np.ndarray) -> np.ndarray:
    """Actions by their positive regrets; all alike where there is none."""
    weight = regrets.sum(1, keepdims=True)
    return np.where(weight > 0, regrets / np.where(weight > 0, weight, 1.0), tree.uniform())


def _of_children(tree: GameTree, values: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """values [N, …] of the nodes that actions lead to, [n, A, …]; 0 where one is not legal."""
    children = tree.children[nodes]
    legal = (children >= 0).reshape(*children.shape, *(1,) * (values.ndim - 1))
    return np.where(legal, values[children], 0.0)


def _values(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """What the seats earn on average from each node on, what was paid before included: float64 [N, P]."""
    values = tree.returns.copy()
    for nodes in reversed(tree.moving):
        chosen = policy[tree.information[nodes]]
        values[nodes] = np.einsum("na,nap->np", chosen, _of_children(tree, values, nodes))
    return values


def _reach(tree: GameTree, policy: np.ndarray, without: int) -> np.ndarray:
    """How likely chance and all seats but one lead to each node, were that seat to play there: float64 [N]."""
    reach = tree.chance.copy()
    for nodes in tree.moving:
        sets, children = tree.information[nodes], tree.children[nodes]
        chosen = np.where((tree.seat[sets] == without)[:, None], 1.0, policy[sets])
        reach[children[children >= 0]] = (reach[nodes, None] * chosen)[children >= 0]
    return reach


def _own_reach(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """How likely a seat's own actions lead to each of its information sets: float64 [I]."""
    likely = np.ones((len(tree.information), tree.game.n_players))
    of_set = np.ones(len(tree.seat))
    for nodes in tree.moving:
        sets, children = tree.information[nodes], tree.children[nodes]
        of_set[sets] = likely[nodes, tree.seat[sets]]
        own = np.arange(likely.shape[1]) == tree.seat[sets][:, None]
        after = likely[nodes, None] * np.where(own[:, None], policy[sets][..., None], 1.0)
        likely[children[children >= 0]] = after[children >= 0]
    return of_set


ITERATIONS = 200


@functools.cache
def _table(game: Game) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every information set its seat and number, int32 [I], and the probabilities of the actions, float32 [I, A]."""
    tree = exact.build(game)
    policy = exact.solve(tree, ITERATIONS)
    return tree.seat.astype(np.int32), tree.codes.astype(np.int32), policy.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class EquilibriumBot:
    """Draws its actions from a policy that hardly anything gains against."""

    game: Game

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """A legal action: int32[]; 0 when the game is over."""
        seats, codes, policy = _table(self.game)
        seat = self.game.player(state)
        known = (codes == self.game.information(state, seat)) & (seats == seat)
        chosen = jax.random.categorical(key, jnp.log(jnp.asarray(policy)[jnp.argmax(known)]))
        return jnp.where(self.game.done(state), 0, chosen).astype(jnp.int32)
