"""Readers that know a position only from the text of a model: the opening, then the events.

`numbers(template, string)` recovers the variant of every table from a string, the first one if several read the same.
Facts that a text does not distinguish are therefore not distinguished here either. A `Reader` per game updates the
indices of the observation from those of events, using the rules of the game but never its state.
"""

import functools
import re

import numpy as np

from envs.games.hanabi.rules import Hanabi, copies
from envs.games.kuhn import rules as kuhn
from envs.games.leduc import rules as leduc
from envs.games.roles import EXECUTOR, TwoRole
from envs.games.template import Fixed, Template


@functools.cache
def pattern(template: Template) -> re.Pattern:
    """A regular expression with a group for every table."""
    parts = []
    for piece in template.pieces:
        if isinstance(piece, Fixed):
            parts.append(re.escape(piece.text))
        else:
            options = sorted(set(piece.variants), key=len, reverse=True)
            parts.append(f"({'|'.join(map(re.escape, options))})")
    return re.compile("".join(parts))


def numbers(template: Template, string: str) -> np.ndarray:
    """The number of the variant that the string shows in each table, the first of those that read the same."""
    found = pattern(template).fullmatch(string)
    assert found is not None, f"{string!r} is not written as the template says"
    return np.array([t.variants.index(shown) for t, shown in zip(template.tables, found.groups(), strict=True)], int)


class Reader:
    """What a seat knows: the numbers of its observation."""

    def __init__(self, text, seat: int, observation: str):
        self.text, self.game, self.seat = text, text.game, seat
        self.known = numbers(text.observation, observation)

    def read(self, event: str) -> None:
        """Take in one event."""
        self.update(numbers(self.text.events, event))

    def expect(self, observation: str) -> None:
        """Fail unless the present observation says what is known."""
        seen = numbers(self.text.observation, observation)
        assert seen.tolist() == self.known.tolist(), observation


class Board(Reader):
    """Tic-tac-toe and connect four: who moved, and where a mark is now."""

    def mark(self, other: int) -> int:
        """How the board shows the mover: by seat in the full style, else 1 for the reader."""
        return 1 + (other if self.text.style != "full" else (other + self.seat) % 2)


class TicTacToe(Board):
    """A cell is marked."""

    def update(self, event):
        """Who, cell."""
        other, cell = event
        self.known[cell] = self.mark(other)


class ConnectFour(Board):
    """A stone is in a row and a column; short texts repeat the effects of the next stones."""

    def update(self, event):
        """Who, column, row, and a fact for every column."""
        other, column, row, *facts = event
        if self.text.style == "brief":  # three numbers for a column, of which the first two are stacks of stones
            stack = 3 * column + (row < 3)
            self.known[stack] = 2 * self.known[stack] + self.mark(other)
            self.known[2::3] = facts
            return
        self.known[row * 7 + column] = self.mark(other)
        self.known[42:] = facts


class Kuhn(Reader):
    """The own card stays, and a move is appended."""

    def update(self, event):
        """Who, action."""
        self.known[1] = kuhn.ROUND.next[self.known[1], event[1]]


class Leduc(Reader):
    """A move is appended to the round that is played; the public card is shown with the move that ends the first."""

    def update(self, event):
        """Who, action, the public card."""
        _, action, public = event
        place = 3 if self.known[1] else 2
        self.known[place] = leduc.ROUND.next[self.known[place], action]
        self.known[1] = self.known[1] or public


class Matrix(Reader):
    """The seat stays, and the state follows from the round; the other's choice is never shown."""

    def update(self, event):
        """Who, own choice, state."""
        other, choice, self.known[1] = event
        assert (choice == self.game.n_actions) == other


class Lookup(Reader):
    """An answer changes nothing that can be seen."""

    def update(self, event):
        """Own answer."""


class Referential(Reader):
    """The speaker's card stays, and the listener hears the message."""

    def update(self, event):
        """Who, and the message or the card."""
        _, action = event
        if self.seat == 1 and action < self.game.messages:
            self.known[-1] = self.game.cards + action


class Puzzle(Reader):
    """Moves, proposals, and in a local view what the executor sees."""

    def __init__(self, text, seat, observation):
        super().__init__(text, seat, observation)
        self.roles = isinstance(self.game, TwoRole)
        self.local = self.roles and self.game.view == "local" and seat == EXECUTOR
        self.puzzle = self.game.game if self.roles else self.game
        self.cells = self.puzzle.shape[0] * self.puzzle.shape[1]
        self.left = len(self.known) - 1 - self.roles

    @property
    def board(self):
        """The cells, a part of what is known."""
        return self.known[: self.cells]

    def update(self, event):
        """Who, what, outcome, moves left, and maybe the board."""
        who, action, *outcome = event[: 3 + self.outcome]
        *outcome, left = outcome
        if left == 0:
            assert who >= 2, "only a proposal leaves the moves that are left as they are"
            if self.roles and self.seat == EXECUTOR:
                self.known[-1] = action + 1
                if self.local:
                    self.see(action, event[3 + self.outcome :])
            return
        self.known[self.left] = left - 1
        if self.roles:
            self.known[-1] = 0
        self.move(action, outcome)

    def see(self, action, shown):
        """Everything out of sight is hidden again; the cells in sight are those shown."""
        hidden = len(self.text.observation.tables[0].variants) - 1
        labels = [len(table.variants) == 2 for table in self.text.events.tables[3 + self.outcome :]]
        codes = [code - 1 for code, label in zip(shown, labels, strict=True) if not label]
        self.board[:] = hidden
        for cell, code in zip(self.places(action), codes, strict=True):
            if cell >= 0:
                self.board[cell] = code


class Walk(Puzzle):
    """Someone walks over the board from `here`."""

    on_goal: dict[int, int]
    figures: tuple[int, int]

    def __init__(self, text, seat, observation):
        super().__init__(text, seat, observation)
        self.here = int(np.flatnonzero(np.isin(self.board, self.figures))[0])

    def places(self, action):
        """The square that the executor sees."""
        (height, width), radius = self.puzzle.shape, self.game.radius
        row, column = divmod(self.here, width)
        span = range(-radius, radius + 1)
        inside = lambda r, c: 0 <= r < height and 0 <= c < width  # noqa: E731
        return [(row + i) * width + column + j if inside(row + i, column + j) else -1 for i in span for j in span]

    def walk(self, there: int) -> None:
        """The figure leaves one cell and enters another, unless it is out of sight where it goes."""
        plain, on_goal = self.figures
        if there != self.here:
            self.board[self.here] = self.goal if self.board[self.here] == on_goal else self.floor
            self.board[there] = on_goal if self.board[there] in self.goals else plain
            self.here = there


class PlanPath(Walk):
    """Facts after the board in notations with words: the places of A and of the goal."""

    outcome = 2
    floor, goal, goals, figures = 0, 2, (2,), (3, 4)

    def __init__(self, text, seat, observation):
        super().__init__(text, seat, observation)
        self.facts = len(self.known) > self.cells + 1 + self.roles

    def move(self, action, outcome):
        """Blocked, place."""
        blocked, place = outcome
        assert bool(blocked) == (place - 1 == self.here)
        self.walk(place - 1)
        if self.facts:
            self.known[self.cells] = self.here

    def see(self, action, shown):
        """The goal's place is known while it is in sight."""
        super().see(action, shown)
        if self.facts:
            goal = np.flatnonzero(np.isin(self.board, (2, 4)))
            self.known[self.cells + 1] = goal[0] if len(goal) else self.cells


class Sokoban(Walk):
    """Boxes are pushed."""

    outcome = 3
    floor, goal, goals, figures = 1, 2, (2, 4), (5, 6)

    def move(self, action, outcome):
        """Blocked, place, box."""
        blocked, place, box = outcome
        assert bool(blocked) == (place - 1 == self.here)
        if box:
            self.board[box - 1] = 4 if self.board[box - 1] == self.goal else 3
        self.walk(place - 1)


class Sudoku(Puzzle):
    """Entries, and own ones that are erased."""

    outcome = 4

    def move(self, action, outcome):
        """Refused, up to three erased cells."""
        refused, *erased = outcome
        n = self.puzzle.size
        if not refused:
            self.board[action // n] = n + action % n + 1
        for cell in erased:
            if cell:
                self.board[cell - 1] = 0

    def places(self, action):
        """Row, column and box of the cell."""
        n = self.puzzle.size
        side, (row, column) = int(n**0.5), divmod(action // n, n)
        box = [(row // side * side + i) * n + column // side * side + j for i in range(side) for j in range(side)]
        return [row * n + i for i in range(n)] + [i * n + column for i in range(n)] + box


class HanabiReader(Reader):
    """Hands as [place][card, colours, ranks], by player from the reader on; the rest in the observation's order."""

    def __init__(self, text, seat, observation):
        super().__init__(text, seat, observation)
        g: Hanabi = self.game
        take = iter(self.known.tolist())
        many = lambda n: [next(take) for _ in range(n)]  # noqa: E731
        self.fireworks, self.counts = many(g.colors), many(4)
        self.piles = [self.unpack(number) for number in many(g.colors)]
        self.moves = [many(2) for _ in range(g.players)]
        self.hands = {}
        for player in range(1, g.players):
            if text.style == "brief":  # the second number of a place follows from fireworks and discards
                values = [x for _ in range(g.hand_size) for i, x in enumerate(many(4)) if i != 1]
            elif text.style == "compact":  # and so do the two bit masks after the cards
                values = [x for i, x in enumerate(many(3 * g.hand_size + 2)) if i not in (g.hand_size, g.hand_size + 1)]
            else:
                values = many(3 * g.hand_size)
            self.hands[player] = self.hand(values, text.style != "compact")
        self.hands[0] = [[None, *many(2)] for _ in range(g.hand_size)]

    def hand(self, values, by_card):
        """Three numbers of every place."""
        size = self.game.hand_size
        if by_card:
            return [values[3 * h : 3 * h + 3] for h in range(size)]
        return [[values[h], *values[size + 2 * h : size + 2 * h + 2]] for h in range(size)]

    def unpack(self, number):
        """Number of copies of each rank in a pile."""
        counts = []
        for most in copies(self.game.ranks):
            number, count = divmod(number, most + 1)
            counts.append(count)
        return counts

    def pack(self, pile):
        """The opposite."""
        number = 0
        for most, count in reversed(list(zip(copies(self.game.ranks), pile, strict=True))):
            number = number * (most + 1) + count
        return number

    def update(self, event):
        """Move, outcome, copies discarded, four counts, whether cards are shown, the hand."""
        g: Hanabi = self.game
        move, outcome, copies_now, *counts = event[:7]
        shown, hand = event[7], self.hand(list(event[8:]), self.text.style == "full")
        mover, action = divmod(int(move), g.n_actions)
        self.moves[mover] = [action + 1, int(outcome)]
        for i, count in enumerate(counts[:3]):
            if count:
                self.counts[i] = count - 1
        self.counts[3] = counts[3]
        if action < 2 * g.hand_size:
            card = (outcome - 1) % g.max_score
            color, rank = divmod(card, g.ranks)
            if outcome > g.max_score and outcome <= 2 * g.max_score:
                self.fireworks[color] = rank + 1
            else:
                self.piles[color][rank] = copies_now
            held = mover
        else:
            told = (action - 2 * g.hand_size) % ((g.players - 1) * g.colors)
            told = told // g.colors
            if action >= 2 * g.hand_size + (g.players - 1) * g.colors:
                told = (action - 2 * g.hand_size - (g.players - 1) * g.colors) // g.ranks
            held = (mover + 1 + told) % g.players
        assert bool(shown) == (action < 2 * g.hand_size and mover != 0), "cards are shown where a partner's changed"
        for place, (card, *known) in zip(self.hands[held], hand, strict=True):
            place[1:] = known
            if shown:
                place[0] = card - 1

    def prospect(self, card):
        """Of a card: 0 there is none, 1 useless, 2 playable, 3 the last copy, 4 any other."""
        if card < 0:
            return 0
        color, rank = divmod(card, self.game.ranks)
        left = [n - gone for n, gone in zip(copies(self.game.ranks), self.piles[color], strict=True)]
        level = self.fireworks[color]
        if rank < level or 0 in left[level : rank + 1]:
            return 1
        return 2 if rank == level else 3 if left[rank] == 1 else 4

    def expect(self, observation):
        """Put together what is known in the order of the observation."""
        by_card = self.text.style != "compact"
        known = [*self.fireworks, *self.counts, *map(self.pack, self.piles), *(x for m in self.moves for x in m)]
        for player in range(1, self.game.players):
            cards, rest = [[p[0]] for p in self.hands[player]], [p[1:] for p in self.hands[player]]
            if self.text.style == "brief":
                cards = [[card, self.prospect(card - 1)] for (card,) in cards]
            if self.text.style == "compact":
                found = [self.prospect(card - 1) for (card,) in cards]
                cards.append([sum((x == which) << h for h, x in enumerate(found)) for which in (2, 1)])
            lists = [c + r for c, r in zip(cards, rest, strict=True)] if by_card else cards + rest
            known += [x for values in lists for x in values]
        self.known = np.array([*known, *(x for p in self.hands[0] for x in p[1:])], int)
        super().expect(observation)


class Pursuit(Reader):
    """Places of the figures, and the grid that follows from them; the reader knows how far a pursuer sees."""

    def update(self, event):
        """Who, action, place, in the local view the evader's place (0 if it is not given), rounds left."""
        who, _, place, *sight, left = event
        cells = self.game.height * self.game.width
        places = self.known[-4:-1]
        places[self.seat if who == 0 else who - 1] = place
        if sight and sight[0]:
            places[2] = sight[0] - 1
        self.known[-1] = left
        if len(self.known) > 4:
            self.known[:-4] = [self.content(cell, places) for cell in range(cells)]

    def content(self, cell, places):
        """0 nothing, 1 and 2 a pursuer, 3 both, 4 the evader, 5 the evader when it is caught, 6 out of sight."""
        if self.game.view == "local" and self.seat < 2 and cell != places[1 - self.seat]:
            here, there = divmod(cell, self.game.width), divmod(places[self.seat], self.game.width)
            if max(abs(a - b) for a, b in zip(here, there, strict=True)) > self.game.radius:
                return 6
        pursuers = (places[0] == cell) + 2 * (places[1] == cell)
        return (5 if pursuers else 4) if places[2] == cell else pursuers


class Warehouse(Reader):
    """Robots and requests are given after a round; the places of the shelves follow, as those with a load move."""

    def update(self, event):
        """Who, choice, whether the round ends, and if so the facts and in the local view the cells around."""
        _, _, ends, *outcome = event
        if not ends:
            assert not any(outcome)
            return
        tables = self.text.events.tables[3:]
        values = [max(n - 1, 0) for n, table in zip(outcome, tables, strict=True) if len(table.variants) > 2]
        (height, width), hidden = self.game.shape, len(self.text.observation.tables[0].variants) - 1
        before, cells = self.known.copy(), height * width
        facts = len(before) - cells
        self.known[cells:] = values[:facts]
        if self.game.view == "local":
            self.known[:cells] = hidden
            (row, column), reach = divmod(values[1], width), self.game.radius
            around = ((i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1))
            for (i, j), seen in zip(around, values[facts:], strict=True):
                if 0 <= row + i < height and 0 <= column + j < width:
                    self.known[(row + i) * width + column + j] = max(seen - 2, 0)
            return
        players = self.game.players
        old, new = (x[cells : cells + 3 * players].reshape(players, 3) for x in (before, self.known))
        shelves = {cell for cell in range(cells) if before[cell] % 3} - {cell for cell, _, load in old if load}
        shelves |= {here[0] for was, here in zip(old, new, strict=True) if was[2] or here[2]}
        requested = set(self.known[cells + 3 * players : -1])
        self.known[:cells] = [2 if cell in requested else int(cell in shelves) for cell in range(cells)]
        for cell, facing, _ in new:
            self.known[cell] += 3 * (1 + facing)


READERS = {
    "tic_tac_toe": TicTacToe,
    "connect_four": ConnectFour,
    "kuhn": Kuhn,
    "leduc": Leduc,
    "matrix": Matrix,
    "referential": Referential,
    "plan_path": PlanPath,
    "sokoban": Sokoban,
    "sudoku": Sudoku,
    "hanabi": HanabiReader,
    "pursuit": Pursuit,
    "warehouse": Warehouse,
    "lookup": Lookup,
}
