"""AT-GRPO on Plan-Path with two roles in plain Python: no batches, no jit, no JAX in the rules.

What chance decides is taken from the program under test: the candidates' actions, the level of a new game, and the
random number that breaks a tie. Everything else (positions, rewards, groups, which candidate is continued, advantages)
is worked out here again from the definitions.
"""

import dataclasses
import math

STEPS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}


@dataclasses.dataclass(frozen=True)
class Position:
    """A walk, and the proposal for its next move (None: the planner is to speak)."""

    distance: tuple[tuple[int, ...], ...]  # to the goal; -1 is a wall
    at: tuple[int, int]
    shortest: int
    turn: int = 0
    proposal: int | None = None

    @property
    def player(self):
        return 0 if self.proposal is None else 1

    def left(self, at=None):
        row, column = at or self.at
        return self.distance[row][column]


def position(state):
    """From the arrays of one row of `RoleState`."""
    inner, width = state.inner, state.inner.distance.shape[1]
    distance = tuple(tuple(int(x) for x in row) for row in inner.distance)
    proposal = None if int(state.phase) == 0 else int(state.proposal)
    return Position(distance, divmod(int(inner.position), width), int(inner.shortest), int(inner.turn), proposal)


def done(p, budget):
    return p.left() == 0 or p.turn >= budget


def move(p, action):
    """(position after a move, team, agent, process): the defaults of Plan-Path."""
    row, column = (x + d for x, d in zip(p.at, STEPS[action], strict=True))
    size = len(p.distance)
    blocked = not (0 <= row < size and 0 <= column < size) or p.distance[row][column] == -1
    to = p.at if blocked else (row, column)
    after = dataclasses.replace(p, at=to, turn=p.turn + 1, proposal=None)
    arrived = after.left() == 0
    team = arrived * (1.0 + 0.5 * (after.turn == p.shortest))
    return after, team, -0.1 if blocked else -0.01, 0.5 * (p.left() - after.left()) / p.shortest


def step(p, action):
    """(position, reward of each seat): planner and executor take turns."""
    after, team, agent, process = move(p, action)
    if p.proposal is None:
        return dataclasses.replace(p, proposal=action), [team + agent + process, 0.0]
    return after, [team, team + agent + process]


def score(p, action, greedy):
    """What a candidate brings to each seat; with `greedy(position) -> action` the executor finishes the turn."""
    after, paid = step(p, action)
    if greedy is not None and after.proposal is not None:
        _, more = step(after, greedy(after))
        paid = [x + y for x, y in zip(paid, more, strict=True)]
    return paid


def choose(scores, continuation, luck):
    """Return the candidate to continue with; `luck` in [0, 1) picks among the best, or among all."""
    if continuation == "first":
        return 0
    best = max(scores)
    able = [k for k, s in enumerate(scores) if continuation == "random" or math.isclose(s, best, abs_tol=1e-6)]
    return able[int(luck * len(able))]


def advantages(scores):
    """GRPO's, with a zero for groups of equal rewards."""
    mean = sum(scores) / len(scores)
    spread = math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))
    if max(scores) - min(scores) < 1e-6:
        return [0.0] * len(scores)
    return [(s - mean) / (spread + 1e-6) for s in scores]


def walk(start, actions, fresh, luck, *, budget, continuation="best", greedy=None):
    """One row through all turns: a list of groups {position, player, rewards [K][P], advantages [K], chosen}.

    actions  [R][K]; fresh(t) -> the position of a new game; luck(t) -> a number in [0, 1)
    """
    p, groups = start, []
    for t, candidates in enumerate(actions):
        rewards = [score(p, a, greedy) for a in candidates]
        mine = [r[p.player] for r in rewards]
        chosen = choose(mine, continuation, luck(t))
        groups.append(dict(position=p, player=p.player, rewards=rewards, advantages=advantages(mine), chosen=chosen))
        p = step(p, candidates[chosen])[0]
        if done(p, budget):
            p = fresh(t)
    return groups
