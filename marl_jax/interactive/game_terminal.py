"""Play a game in the terminal, with a user, bots or policies in its seats."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import jax
import numpy as np

from envs.games import view
from envs.games.game import Bot, Game, State
from envs.games.text import Prompt
from marl_jax.interactive.game_table import GameTable, PolicySeat

HELP = """\
A move      the name of a legal action
legal       list the legal actions
prompt      print the prompt that a model in your seat would read now
svg FILE    write the position to an SVG file
image FILE  write the picture that a model in your seat would see now to a PNG file
help        print this text
quit        leave the game
"""


LISTED = 40  # maximum number of legal actions listed before a move


@dataclasses.dataclass(frozen=True)
class Person:
    """The user at the terminal."""

    name: str = "you"


Seat = Person | Bot


def play(
    game: Game,
    prompt: Prompt,
    seats: Sequence[Seat],
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
    source: TextIO | None = None,
    output: TextIO | None = None,
) -> State | None:
    """Play one game and return its last state, or None if the user quits.

    Args:
        game: Game to play.
        prompt: Prompt of the game.
        seats: A `Person` or a bot for every seat.
        names: Names of the players by seat.
        seed: Random seed.
        source: Input; None means stdin.
        output: Output; None means stdout.
    """
    if len(seats) != game.n_players:
        raise ValueError(f"{game.name} has {game.n_players} seats, but got {len(seats)} players")
    names = names or [seat.name if isinstance(seat, Person) else type(seat).__name__ for seat in seats]
    table = GameTable(game, prompt, names, seed)
    terminal = _Terminal(table, source or sys.stdin, output or sys.stdout)
    persons = [i for i, seat in enumerate(seats) if isinstance(seat, Person)]
    policies = {id(seat): seat for seat in seats if isinstance(seat, PolicySeat)}.values()
    acts = {
        i: seat.act if isinstance(seat, PolicySeat) else jax.jit(seat.act)
        for i, seat in enumerate(seats)
        if not isinstance(seat, Person)
    }
    while not table.done:
        if table.mover in persons:
            terminal.show_board(table.mover)
            action = terminal.ask()
            if action is None:
                return None
        else:
            if not persons:
                terminal.show_board(None)
            action = int(acts[table.mover](table.state, table.turn_key))
        taken = table.take(action)
        terminal.write(f"{table.seat_label(taken.seat)}: {table.describe(action)}")
        for seat in policies:
            seat.observe(taken.before, action, taken.after)
    terminal.show_board(None)
    for line in table.result():
        terminal.write(line)
    return table.state


@dataclasses.dataclass(eq=False)
class _Terminal:
    """Input and output of a game at the terminal."""

    table: GameTable
    source: TextIO
    output: TextIO

    def write(self, text: str = "", end: str = "\n") -> None:
        """Write a text."""
        self.output.write(text + end)
        self.output.flush()

    def show_board(self, player: int | None) -> None:
        """Write the board as a player sees it, or all of it for None."""
        self.write("\n" + view.board(self.table.game, self.table.state, player))

    def list_legal(self, most: int | None = None) -> None:
        """Write the legal actions, at most `most` of them."""
        actions = [self.table.describe(int(a)) for a in np.flatnonzero(self.table.legal)]
        more = "" if most is None or len(actions) <= most else f" … and {len(actions) - most} more; `legal` lists all"
        self.write("Legal: " + ", ".join(actions[:most]) + more)

    def ask(self) -> int | None:
        """Ask until the user names a legal action; return None when the user quits."""
        self.list_legal(LISTED)
        while True:
            self.write(f"{self.table.seat_label(self.table.mover)}> ", end="")
            line = self.source.readline()
            words = line.split()
            match words:
                case [] if not line:
                    self.write()
                    return None
                case []:
                    continue
                case ["quit" | "exit"]:
                    return None
                case ["help"]:
                    self.write(HELP, end="")
                case ["legal"]:
                    self.list_legal()
                case ["prompt"]:
                    self.write(self.table.prompt_text(self.table.mover))
                    if self.table.prompt.text.medium is not None:
                        self.write("`image FILE` writes the picture in this prompt.")
                case ["svg", *path]:
                    self.draw(" ".join(path))
                case ["image", *path]:
                    self.draw_picture(" ".join(path))
                case _:
                    action = self.read_action(line.strip())
                    if action is not None:
                        return action

    def read_action(self, line: str) -> int | None:
        """Return the legal action that a line names, in any of its printed forms.

        Writes the reason and returns None if there is no such action.
        """
        game, names = self.table.game, self.table.prompt.text.names
        known = [*enumerate(names), *enumerate(game.action_names), *enumerate(game.action_texts)]
        exact = [a for a, name in known if name == line]
        folded = [a for a, name in known if name.lower() == line.lower()]
        for action in exact or folded:
            if self.table.legal[action]:
                return action
        self.write(
            f"{line!r} is not legal here." if folded else f"{line!r} is not an action; type `help` for the commands."
        )
        return None

    def draw(self, path: str) -> None:
        """Write the position to an SVG file."""
        if not path:
            self.write("svg needs a file name, e.g. svg position.svg")
            return
        self._save(path, view.svg(self.table.game, self.table.state, self.table.mover).encode())

    def draw_picture(self, path: str) -> None:
        """Write the picture in the prompt to a PNG file."""
        picture = self.table.prompt.text.medium
        if picture is None:
            self.write("The prompt has no picture; set env.observation to 'image' or 'both'.")
        elif not path:
            self.write("image needs a file name, e.g. image position.png")
        else:
            self._save(path, picture.file(self.table.state, self.table.mover))

    def _save(self, path: str, data: bytes) -> None:
        try:
            Path(path).expanduser().write_bytes(data)
        except OSError as error:
            self.write(f"{path}: {error.strerror}")
        else:
            self.write(f"written to {path}")
