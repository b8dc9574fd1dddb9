"""Exact values, best responses and exploitability of policies in small games.

A game that enumerates its deals and information sets (`Game.n_deals`, `Game.information`) has a finite tree of all
deals and all sequences of legal actions. States that the player to move cannot distinguish form an information set, and
a policy has one distribution over actions for each of them.

    tree = build(game)
    policy = tree.uniform()                         # float64 [I, A]
    nash_conv(tree, policy)                         # sum over the seats of the gain of a best response
    exploitability(tree, policy)                    # that divided by the number of seats
    policy = solve(tree, iterations=1000)           # close to an equilibrium

Axis letters: N nodes of the tree, I information sets, A actions, P players. All arithmetic is NumPy in float64.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import exact
from envs.games.game import Game, State

CHUNK = 512  # states per call of the rules, which are compiled for this shape only


@dataclasses.dataclass(frozen=True, eq=False)
class GameTree:
    """All histories of a game, grouped by length.

    Attributes:
        game: The game.
        levels: Slices of the nodes of each length.
        information: int [N]. Information set of the player to move, -1 in terminal nodes.
        children: int [N, A]. Child node, -1 if the action is illegal.
        returns: float64 [N, P]. Sum of the rewards so far.
        chance: float64 [N]. Probability of the deal.
        codes: int [I]. Number of each information set (`Game.information`), sorted by seat, then by number.
        seat: int [I]. Player to move.
        turn: int [I]. Number of moves so far.
        legal: bool [I, A]. Legal actions.
        states: One state of each information set, stacked.
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
        """Return the policy that plays legal actions uniformly: float64 [I, A]."""
        return self.legal / self.legal.sum(1, keepdims=True)

    @functools.cached_property
    def moving(self) -> tuple[np.ndarray, ...]:
        """Nonterminal nodes of each level."""
        return tuple(np.flatnonzero(self.information[level] >= 0) + level.start for level in self.levels)


@functools.cache
def build(game: Game) -> GameTree:
    """Build the tree of a game; trees are cached."""
    if not game.n_deals:
        raise ValueError(f"{game.name} cannot be enumerated: it does not define n_deals")
    look = jax.jit(jax.vmap(functools.partial(_look, game)))
    states = _in_chunks(jax.jit(jax.vmap(game.deal)), np.arange(game.n_deals, dtype=np.int32))
    returns = np.zeros((game.n_deals, game.n_players))
    chance = np.full(game.n_deals, 1.0 / game.n_deals)
    parts: dict[str, list] = {name: [] for name in ("code", "seat", "legal", "children", "returns", "chance", "states")}
    levels, start = [], 0
    while len(chance):
        seat, code, legal, after, reward = _in_chunks(look, states)
        count, (node, action) = len(chance), np.nonzero(legal)
        children = np.full(legal.shape, -1)
        children[node, action] = start + count + np.arange(len(node))
        level = (np.where(legal.any(1), code, -1), seat, legal, children, returns, chance, states)
        for name, value in zip(parts, level, strict=True):
            parts[name].append(value)
        levels.append(slice(start, start + count))
        start += count
        states = jax.tree.map(lambda x, at=(node, action): x[at], after)
        returns, chance = returns[node] + reward[node, action], chance[node]
    joined = {name: np.concatenate(parts[name]) for name in parts if name != "states"}
    states = jax.tree.map(lambda *xs: np.concatenate(xs), *parts["states"])
    return _with_information_sets(game, tuple(levels), joined, states)


def _look(game: Game, state):
    """Return the seat to move, its information set, the legal mask, and all successors.

    No action is legal in a terminal state. Successors are the next state and the reward of every action.
    """
    seat = game.player(state)
    legal = game.legal(state) & ~game.done(state)
    after, reward = jax.vmap(game.step, (None, 0))(state, jnp.arange(game.n_actions))
    return seat, game.information(state, seat), legal, after, reward.team[:, None] + reward.agent


def _in_chunks(function, states):
    """Apply `function` to states [n, …] in chunks and return NumPy arrays.

    Every call gets CHUNK states, so the last one is padded.
    """
    n = len(jax.tree.leaves(states)[0])
    parts = []
    for start in range(0, n, CHUNK):
        part = jax.tree.map(lambda x, at=start: x[at : at + CHUNK], states)
        size = len(jax.tree.leaves(part)[0])
        filled = jax.tree.map(lambda x, size=size: np.pad(x, ((0, CHUNK - size), *((0, 0),) * (x.ndim - 1))), part)
        with jax.ensure_compile_time_eval():  # a bot may build the tree during tracing
            parts.append(jax.tree.map(lambda x, size=size: x[:size], jax.device_get(function(filled))))
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def _with_information_sets(game: Game, levels: tuple[slice, ...], nodes: dict[str, np.ndarray], states) -> GameTree:
    depth = np.repeat(np.arange(len(levels)), [level.stop - level.start for level in levels])
    moving = np.flatnonzero(nodes["code"] >= 0)
    keys = np.stack([nodes["seat"], nodes["code"]], axis=1)[moving]
    sets, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    example, which = moving[first], which.reshape(-1)
    same = (depth[moving] == depth[example][which]) & (nodes["legal"][moving] == nodes["legal"][example][which]).all(1)
    if not same.all():
        raise ValueError(f"{game.name}: two states of an information set differ in their turn or legal actions")
    information = np.full(len(depth), -1)
    information[moving] = which
    return GameTree(
        game=game,
        levels=levels,
        information=information,
        children=nodes["children"],
        returns=nodes["returns"],
        chance=nodes["chance"],
        codes=sets[:, 1],
        seat=sets[:, 0],
        turn=depth[example],
        legal=nodes["legal"][example],
        states=jax.tree.map(lambda x: x[example], states),
    )


# --- Evaluating policies --------------------------------------------------------------------------------------------


def expected_returns(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """Return the expected return of each seat if all play `policy`: float64 [P]."""
    return tree.chance[tree.levels[0]] @ _values(tree, policy)[tree.levels[0]]


def best_response(tree: GameTree, policy: np.ndarray, seat: int) -> tuple[float, np.ndarray]:
    """Compute a best response of one seat to `policy` in all other seats.

    Returns:
        The value of the best response, and its actions int [I], -1 in information sets of other seats.
    """
    reach = _reach(tree, policy, without=seat)
    value, action = tree.returns[:, seat].copy(), np.full(len(tree.seat), -1)
    for nodes in reversed(tree.moving):
        sets, after = tree.information[nodes], _of_children(tree, value, nodes)
        own = tree.seat[sets] == seat
        # Value of each action in an information set, weighted by the reach probabilities of its states.
        worth = np.zeros(tree.legal.shape)
        np.add.at(worth, sets[own], reach[nodes[own], None] * after[own])
        best = np.argmax(np.where(tree.legal, worth, -np.inf), axis=1)
        action[sets[own]] = best[sets[own]]
        chosen = np.take_along_axis(after, best[sets][:, None], axis=1)[:, 0]
        value[nodes] = np.where(own, chosen, np.sum(policy[sets] * after, axis=1))
    return float(tree.chance[tree.levels[0]] @ value[tree.levels[0]]), action


def nash_conv(tree: GameTree, policy: np.ndarray) -> float:
    """Return the sum over seats of the gain of a best response.

    It is 0 in an equilibrium, and only there.
    """
    values = expected_returns(tree, policy)
    return sum(best_response(tree, policy, seat)[0] - float(values[seat]) for seat in range(len(values)))


def exploitability(tree: GameTree, policy: np.ndarray) -> float:
    """Return NashConv divided by the number of players, as in OpenSpiel."""
    return nash_conv(tree, policy) / tree.game.n_players


def mixture(tree: GameTree, policies: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the policy that draws one of several for each game: float64 [I, A].

    In an information set, a policy counts in proportion to the probability that its own moves lead there. Information
    sets that no policy reaches are uniform.

    Args:
        tree: Tree of the game.
        policies: float64 [K, I, A].
        weights: float64 [P, K]. Probability of each policy, for each seat.
    """
    reach = np.stack([_own_reach(tree, policy) for policy in policies])
    return _normalized(tree, np.einsum("ki,kia->ia", weights.T[:, tree.seat] * reach, policies))


def solve(tree: GameTree, iterations: int) -> np.ndarray:
    """Approximate an equilibrium of a two-player zero-sum game with CFR+: float64 [I, A].

    Regrets are clipped at 0, seats are updated in turn, and the average weights later policies more.
    """
    regrets, total = np.zeros(tree.legal.shape), np.zeros(tree.legal.shape)
    for iteration in range(1, iterations + 1):
        for seat in range(tree.game.n_players):
            policy = _normalized(tree, regrets)
            values, reach = _values(tree, policy)[:, seat], _reach(tree, policy, without=seat)
            for nodes in tree.moving:
                nodes = nodes[tree.seat[tree.information[nodes]] == seat]
                gain = _of_children(tree, values, nodes) - values[nodes, None]
                np.add.at(regrets, tree.information[nodes], reach[nodes, None] * gain)
            regrets = np.where(tree.legal, np.maximum(regrets, 0.0), 0.0)
        policy = _normalized(tree, regrets)
        total += iteration * _own_reach(tree, policy)[:, None] * policy
    return _normalized(tree, total)


def _normalized(tree: GameTree, weights: np.ndarray) -> np.ndarray:
    """Return probabilities proportional to weights [I, A], or uniform if all are 0."""
    total = weights.sum(1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), tree.uniform())


def _of_children(tree: GameTree, values: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Gather values [N, …] of the children, 0 for illegal actions: [n, A, …]."""
    children = tree.children[nodes]
    legal = (children >= 0).reshape(*children.shape, *(1,) * (values.ndim - 1))
    return np.where(legal, values[children], 0.0)


def _values(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """Return the expected return of each seat at each node: float64 [N, P]."""
    values = tree.returns.copy()
    for nodes in reversed(tree.moving):
        chosen = policy[tree.information[nodes]]
        values[nodes] = np.einsum("na,nap->np", chosen, _of_children(tree, values, nodes))
    return values


def _reach(tree: GameTree, policy: np.ndarray, without: int) -> np.ndarray:
    """Return the probability that chance and all other seats lead to each node: float64 [N].

    The seat `without` is assumed to play towards the node.
    """
    reach = tree.chance.copy()
    for nodes in tree.moving:
        sets, children = tree.information[nodes], tree.children[nodes]
        chosen = np.where((tree.seat[sets] == without)[:, None], 1.0, policy[sets])
        reach[children[children >= 0]] = (reach[nodes, None] * chosen)[children >= 0]
    return reach


def _own_reach(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """Return the probability that a seat plays to each of its information sets: float64 [I]."""
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
    """Return the equilibrium policy of a game as a lookup table.

    Returns:
        Seats int32 [I], numbers int32 [I] and probabilities float32 [I, A] of the information sets.
    """
    tree = exact.build(game)
    policy = exact.solve(tree, ITERATIONS)
    return tree.seat.astype(np.int32), tree.codes.astype(np.int32), policy.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class EquilibriumBot:
    """A bot that samples from an approximate equilibrium policy."""

    game: Game

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """Sample a legal action: int32 []; 0 if the game is over."""
        seats, codes, policy = _table(self.game)
        seat = self.game.player(state)
        known = (codes == self.game.information(state, seat)) & (seats == seat)
        chosen = jax.random.categorical(key, jnp.log(jnp.asarray(policy)[jnp.argmax(known)]))
        return jnp.where(self.game.done(state), 0, chosen).astype(jnp.int32)
