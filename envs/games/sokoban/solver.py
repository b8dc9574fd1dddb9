"""An exact Sokoban solver for the host: A* over pushes, with boards as Python integers.

Bit p of a board is cell p, row by row. Levels are enclosed by walls, so a shift never wraps the player around the edge.
"""

import functools
import heapq
import itertools

import numpy as np

WALL, FLOOR, GOAL, BOX, BOX_ON_GOAL, PLAYER, PLAYER_ON_GOAL = range(7)
"""Codes of the cells, as in the Boxoban dataset."""

FAR = 1 << 20


class SearchLimit(Exception):
    """Raised if the search reaches its node limit without a result."""


def bits(mask: int) -> list[int]:
    """Return the cells of a board, in order."""
    cells = []
    while mask:
        low = mask & -mask
        cells.append(low.bit_length() - 1)
        mask ^= low
    return cells


def board(mask: np.ndarray) -> int:
    """Convert a mask bool [h, w] to a board."""
    return sum(1 << int(p) for p in np.flatnonzero(mask))


class Level:
    """The constant part of a level."""

    def __init__(self, cells: np.ndarray):
        self.height, self.width = cells.shape
        self.steps = (-self.width, self.width, -1, 1)
        self.floor = board(cells != WALL)
        players = board(np.isin(cells, (PLAYER, PLAYER_ON_GOAL)))
        if players:  # cells outside the player's walls are never entered
            self.floor = sum(self.walk(bits(players)[0], 0))
        self.goals = bits(board(np.isin(cells, (GOAL, BOX_ON_GOAL, PLAYER_ON_GOAL))))
        self.goal_board = sum(1 << g for g in self.goals)
        self.pushes = [self._pushes_to(goal) for goal in self.goals]
        self.live = sum(1 << p for p in set().union(*self.pushes))
        self.bound = functools.lru_cache(maxsize=None)(self._bound)

    def _pushes_to(self, goal: int) -> dict[int, int]:
        """Return the fewest pushes of a single box from each cell to the goal.

        Cells from which the goal is unreachable are absent.
        """
        pushes, frontier = {goal: 0}, [goal]
        while frontier:
            after = []
            for cell in frontier:
                for step in self.steps:
                    before, stand = cell - step, cell - 2 * step
                    if before not in pushes and self._is_floor(before) and self._is_floor(stand):
                        pushes[before] = pushes[cell] + 1
                        after.append(before)
            frontier = after
        return pushes

    def _is_floor(self, cell: int) -> bool:
        return cell >= 0 and bool(self.floor >> cell & 1)

    def _bound(self, boxes: int) -> int:
        """Return a lower bound on the number of pushes left.

        It is the cheapest assignment of boxes to different goals.
        """
        cost = [[to_goal.get(box, FAR) for to_goal in self.pushes] for box in bits(boxes)]
        if len(self.goals) > 5:
            return sum(min(row) for row in cost)
        ways = itertools.permutations(range(len(self.goals)), len(cost))
        return min(sum(row[goal] for row, goal in zip(cost, way, strict=True)) for way in ways)

    def walk(self, player: int, boxes: int) -> list[int]:
        """Return the cells first reached after 0, 1, 2, … steps, as boards."""
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
        """Return the actions of a shortest walk from `player` to `target`."""
        layers = self.walk(player, boxes)
        distance = next(i for i, layer in enumerate(layers) if layer >> target & 1)
        actions, cell = [], target
        for layer in reversed(layers[:distance]):
            action = next(a for a, step in enumerate(self.steps) if layer >> (cell - step) & 1)
            actions.append(action)
            cell -= self.steps[action]
        return actions[::-1]

    def stuck(self, boxes: int, box: int) -> bool:
        """Return whether `box` is part of a frozen 2x2 block.

        The block consists of walls and boxes, with a box off its goal, so it can never move again.
        """
        solid = boxes | ~self.floor
        for down, right in itertools.product((-self.width, self.width), (-1, 1)):
            block = 1 << box | 1 << box + down | 1 << box + right | 1 << box + down + right
            if solid & block == block and boxes & block & ~self.goal_board:
                return True
        return False


def solve(cells: np.ndarray, objective: str = "moves", max_nodes: int = 200_000) -> list[int] | None:
    """Solve a level.

    Args:
        cells: uint8 [h, w].
        objective: "moves" to minimize moves, or "pushes" to minimize pushes, which searches fewer positions.
        max_nodes: Maximum number of positions to search.

    Returns:
        Actions (0 up, 1 down, 2 left, 3 right), or None if the level has no solution.

    Raises:
        SearchLimit: After `max_nodes` positions.
    """
    if objective not in ("moves", "pushes"):
        raise ValueError(f"sokoban solver: objective is {objective!r}, but must be one of: moves, pushes")
    level = Level(cells)
    player = int(np.flatnonzero(np.isin(cells, (PLAYER, PLAYER_ON_GOAL)))[0])
    boxes = board(np.isin(cells, (BOX, BOX_ON_GOAL)))
    by_moves = objective == "moves"

    # A position is (boxes, place). The place is the player's cell, or, for pushes, the lowest cell it can reach.
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
            raise SearchLimit(f"found no solution within {max_nodes} positions")
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
                after, total = (pushed, place(box, pushed)), cost + walked + 1
                if total < best.get(after, FAR):
                    bound = level.bound(pushed)
                    if bound < FAR:
                        best[after] = total
                        came[after] = (position, player, boxes, stand, action)
                        heapq.heappush(queue, (total + bound, next(order), total, pushed, box, after))
    return None


def _replay(level: Level, came: dict, position: tuple) -> list[int]:
    """Return the actions, including walks, that led to `position`."""
    parts = []
    while position in came:
        position, player, boxes, stand, action = came[position]
        parts.append([*level.path(player, boxes, stand), action])
    return list(itertools.chain.from_iterable(reversed(parts)))
