"""An exact Sokoban solver for the host: A* over pushes, on boards kept as the bits of Python integers.

Bit p of a board is cell p, row by row. Levels are closed by walls, so a shift never carries a walker around the edge.
"""

import functools
import heapq
import itertools

import numpy as np

WALL, FLOOR, GOAL, BOX, BOX_ON_GOAL, PLAYER, PLAYER_ON_GOAL = range(7)
"""Codes of a level's cells, as in the Boxoban collection."""

FAR = 1 << 20


class SearchLimit(Exception):
    """The search ended at its node limit, with no answer either way."""


def bits(mask: int) -> list[int]:
    """The cells of a board, in order."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def board(mask: np.ndarray) -> int:
    """bool[h,w] as a board."""
    return sum(1 << int(p) for p in np.flatnonzero(mask))


class Level:
    """What never changes while a level is played."""

    def __init__(self, cells: np.ndarray):
        self.height, self.width = cells.shape
        self.steps = (-self.width, self.width, -1, 1)
        self.floor = board(cells != WALL)
        players = board(np.isin(cells, (PLAYER, PLAYER_ON_GOAL)))
        if players:  # what lies outside the player's walls, open to the edge or not, is never entered
            self.floor = sum(self.walk(bits(players)[0], 0))
        self.goals = bits(board(np.isin(cells, (GOAL, BOX_ON_GOAL, PLAYER_ON_GOAL))))
        self.goal_board = sum(1 << g for g in self.goals)
        self.pushes = [self._pushes_to(goal) for goal in self.goals]
        self.live = sum(1 << p for p in set().union(*self.pushes))
        self.bound = functools.lru_cache(maxsize=None)(self._bound)

    def _pushes_to(self, goal: int) -> dict[int, int]:
        """The fewest pushes that bring a lone box from each cell to the goal; cells from which none do are absent."""
        found, frontier = {goal: 0}, [goal]
        while frontier:
            after = []
            for cell in frontier:
                for step in self.steps:
                    before, stand = cell - step, cell - 2 * step
                    if before not in found and self._is_floor(before) and self._is_floor(stand):
                        found[before] = found[cell] + 1
                        after.append(before)
            frontier = after
        return found

    def _is_floor(self, cell: int) -> bool:
        return cell >= 0 and bool(self.floor >> cell & 1)

    def _bound(self, boxes: int) -> int:
        """A lower bound on the pushes left: the cheapest way to give every box a goal of its own."""
        cost = [[to_goal.get(box, FAR) for to_goal in self.pushes] for box in bits(boxes)]
        if len(self.goals) > 5:
            return sum(min(row) for row in cost)
        ways = itertools.permutations(range(len(self.goals)), len(cost))
        return min(sum(row[goal] for row, goal in zip(cost, way, strict=True)) for way in ways)

    def walk(self, player: int, boxes: int) -> list[int]:
        """Cells first reached after 0, 1, 2, … steps, as boards."""
        free = self.floor & ~boxes
        frontier = 1 << player
        layers = []
        while frontier:
            layers.append(frontier)
            free &= ~frontier
            spread = frontier << 1 | frontier >> 1 | frontier << self.width | frontier >> self.width
            frontier = spread & free
        return layers

    def path(self, player: int, boxes: int, target: int) -> list[int]:
        """Actions of a shortest walk from `player` to `target`."""
        layers = self.walk(player, boxes)
        distance = next(i for i, layer in enumerate(layers) if layer >> target & 1)
        actions, cell = [], target
        for layer in reversed(layers[:distance]):
            action = next(a for a, step in enumerate(self.steps) if layer >> (cell - step) & 1)
            actions.append(action)
            cell -= self.steps[action]
        return actions[::-1]

    def stuck(self, boxes: int, box: int) -> bool:
        """Whether a 2x2 block around `box` is all walls and boxes, with a box off its goal: it can never move again."""
        solid = boxes | ~self.floor
        for down, right in itertools.product((-self.width, self.width), (-1, 1)):
            block = 1 << box | 1 << box + down | 1 << box + right | 1 << box + down + right
            if solid & block == block and boxes & block & ~self.goal_board:
                return True
        return False


def solve(cells: np.ndarray, objective: str = "moves", max_nodes: int = 200_000) -> list[int] | None:
    """The actions (0 up, 1 down, 2 left, 3 right) that solve a level uint8[h,w], or None if nothing does.

    objective "moves" makes the answer shortest in moves; "pushes", shortest in pushes, searches fewer positions.
    SearchLimit is raised after `max_nodes` positions.
    """
    if objective not in ("moves", "pushes"):
        raise ValueError(f"sokoban solver: objective must be 'moves' or 'pushes', found {objective!r}")
    level = Level(cells)
    player = int(np.flatnonzero(np.isin(cells, (PLAYER, PLAYER_ON_GOAL)))[0])
    boxes = board(np.isin(cells, (BOX, BOX_ON_GOAL)))
    by_moves = objective == "moves"

    # A position is (boxes, place): the player's cell, or when only pushes count, the lowest cell it can walk to.
    def place(player: int, boxes: int) -> int:
        if by_moves:
            return player
        reach = sum(level.walk(player, boxes))
        return (reach & -reach).bit_length()

    start = (boxes, place(player, boxes))
    best = {start: 0}
    came: dict[tuple, tuple] = {}
    queue = [(level.bound(boxes), 0, 0, boxes, player, start)]
    if queue[0][0] >= FAR:
        return None
    closed = set()
    order = itertools.count(1)
    while queue:
        _, _, cost, boxes, player, position = heapq.heappop(queue)
        if position in closed:
            continue
        closed.add(position)
        if not boxes & ~level.goal_board:
            return _replay(level, came, position)
        if len(closed) > max_nodes:
            raise SearchLimit(f"no solution among {max_nodes} positions")
        layers = level.walk(player, boxes)
        reach = sum(layers)
        for box in bits(boxes & level.floor):
            for action, step in enumerate(level.steps):
                stand, target = box - step, box + step
                if not reach >> stand & 1 or not (level.live & ~boxes) >> target & 1:
                    continue
                pushed = boxes ^ (1 << box | 1 << target)
                if level.stuck(pushed, target):
                    continue
                walked = next(i for i, layer in enumerate(layers) if layer >> stand & 1) if by_moves else 0
                after, paid = (pushed, place(box, pushed)), cost + walked + 1
                if paid < best.get(after, FAR):
                    bound = level.bound(pushed)
                    if bound < FAR:
                        best[after] = paid
                        came[after] = (position, player, boxes, stand, action)
                        heapq.heappush(queue, (paid + bound, next(order), paid, pushed, box, after))
    return None


def _replay(level: Level, came: dict, position: tuple) -> list[int]:
    """The actions, walks included, that led to `position`."""
    parts = []
    while position in came:
        position, player, boxes, stand, action = came[position]
        parts.append([*level.path(player, boxes, stand), action])
    return list(itertools.chain.from_iterable(reversed(parts)))
