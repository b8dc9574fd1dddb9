"""A person plays in the terminal, against bots or checkpoints, and sees what the model sees.

    python launch.py --mode=play --config=experiments/tic_tac_toe_selfplay.py --config.play.opponent=minimax
    python launch.py --mode=play --workdir=runs/mine                    # against the run's newest checkpoint

Moves are typed as the model would write them. `prompt` prints the exact text that a model in this seat would read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from envs.games import view
from envs.games.bots import Bot, bot_names
from envs.games.game import Game, State
from envs.games.text import Prompt
from marl_jax import setup as setups
from marl_jax.errors import RunError
from marl_jax.evaluation import contestants
from marl_jax.evaluation.game_table import GameTable
from marl_jax.modes import task_play
from marl_jax.rollouts.games import look
from marl_jax.rollouts.host.episodes import Episode
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.serving.remote import check_reachable
from marl_jax.serving.remote_bot import remote_failures
from marl_jax.setup import Setup
from marl_jax.setup.weights import present_weights

HELP = """\
A move      the name of a legal action
legal       list the legal actions
prompt      print the prompt that a model in your seat would read now
svg FILE    write the position as a drawing
help        this text
quit        leave the game
"""
LISTED = 40  # legal actions that are listed without being asked for


@dataclasses.dataclass(frozen=True)
class Person:
    """Whoever sits at the terminal."""

    name: str = "you"


class PolicySeat:
    """A team with its weights, to be asked like a bot; its conversations go on as they do in training.

    temperature  0 takes the most likely move
    """

    def __init__(self, game: Game, seated: SeatedTeam, ready: dict, temperature: float = 0.0):
        self._game, self._seated, self._temperature = game, seated, temperature
        self._context = seated.context(game)
        self._ready, self._turn = ready, 0
        self._talk = self._context.begin(1, recording=False)
        self._asked, self._told = jax.jit(self._answer), jax.jit(self._observe)

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """The policy's action: int32[]."""
        action, self._talk = self._asked(self._ready, self._talk, state, key, self._turn)
        return action

    def observe(self, before: State, action: int, after: State) -> None:
        """Hears of a move, its own too."""
        self._talk = self._told(self._talk, before, jnp.int32(action), after, self._turn)
        self._turn += 1

    def _answer(self, ready, talk, state, key, turn):
        team, seating = self._seated.team, self._seated.seating
        state, key = jax.tree.map(lambda x: x[None], (state, key))
        seat = jax.vmap(self._game.player)(state)
        seen = look(self._game, team, state, seat, self._seated.policy(seat, turn))
        asked = self._context.read(talk, seen)
        decision, talk = self._context.act(
            ready, talk, asked, key, legal=seen.legal, policy=seen.policy, temperature=self._temperature
        )
        # As in a match: a free answer that names no legal action is one drawn from them.
        action = team.playable(decision.action, seen.legal, key)
        talk, _ = self._context.say(talk, asked, decision, seen.policy)
        return seating.bot_actions(state, seat, key, action)[0], talk

    def _observe(self, talk, before, action, after, turn):
        before, action, after = jax.tree.map(lambda x: x[None], (before, action, after))
        return self._context.observe(talk, before, action, after, jnp.full((1,), turn))


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
    """One game, with a `Person` or something that has `act(state, key)` in every seat: its last state, or None."""
    if len(seats) != game.n_players:
        raise ValueError(f"{game.name} has {game.n_players} seats, found {len(seats)} to fill them")
    names = names or [seat.name if isinstance(seat, Person) else type(seat).__name__ for seat in seats]
    table = GameTable(game, prompt, names, seed)
    terminal = _Terminal(table, source or sys.stdin, output or sys.stdout)
    persons = [i for i, seat in enumerate(seats) if isinstance(seat, Person)]
    policies = {id(seat): seat for seat in seats if isinstance(seat, PolicySeat)}.values()
    acts = {
        i: seat.act if isinstance(seat, PolicySeat) else jax.jit(seat.act)
        for i, seat in enumerate(seats)
        if i not in persons
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
    """What is written and read at the terminal."""

    table: GameTable
    source: TextIO
    output: TextIO

    def write(self, text: str = "", end: str = "\n") -> None:
        self.output.write(text + end)
        self.output.flush()

    def show_board(self, player: int | None) -> None:
        self.write("\n" + view.board(self.table.game, self.table.state, player))

    def list_legal(self, most: int | None = None) -> None:
        actions = [self.table.describe(a) for a in np.flatnonzero(self.table.legal)]
        more = "" if most is None or len(actions) <= most else f" … and {len(actions) - most} more; `legal` lists all"
        self.write("Legal: " + ", ".join(actions[:most]) + more)

    def ask(self) -> int | None:
        """Ask until a legal action is named; None when the person leaves."""
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
                case ["svg", *path]:
                    self.draw(" ".join(path))
                case _:
                    action = self.read_action(line.strip())
                    if action is not None:
                        return action

    def read_action(self, line: str) -> int | None:
        """The legal action that a line names, in any way that is printed; None, after saying why, for others."""
        game, names = self.table.game, self.table.prompt.text.names
        known = [*enumerate(names), *enumerate(game.action_names), *enumerate(game.action_texts)]
        exact = [a for a, name in known if name == line]
        folded = [a for a, name in known if name.lower() == line.lower()]
        for action in exact or folded:
            if self.table.legal[action]:
                return action
        self.write(
            f"{line!r} is not legal here." if folded else f"{line!r} is no action; `help` says what can be typed."
        )
        return None

    def draw(self, path: str) -> None:
        if not path:
            self.write("svg needs the name of a file, e.g. svg position.svg")
            return
        try:
            Path(path).expanduser().write_text(view.svg(self.table.game, self.table.state, self.table.mover))
        except OSError as error:
            self.write(f"{path}: {error.strerror}")
        else:
            self.write(f"written to {path}")


def main(config: ConfigDict, workdir: Path) -> State | Episode | None:
    """`--mode=play`: the person sits in seat `play.seat` (-1: nobody, to watch), `play.opponent` in the others."""
    check_reachable([config.play.opponent], "play.opponent")
    setup = setups.make(config, workdir=workdir)
    if setup.host:
        with contextlib.closing(setup):
            return task_play.play(setup, present_weights(setup, workdir)[1])
    seat = config.play.seat
    if not -1 <= seat < setup.game.n_players:
        raise RunError(f"config.play.seat is {seat}; accepted: 0 to {setup.game.n_players - 1}, or -1 to watch")
    with jax.set_mesh(setup.mesh):
        alone = setup.game.n_players == 1 and seat == 0
        other, name = (
            (Person(), "you") if alone else _opponent(config.play.opponent, setup, workdir, config.play.temperature)
        )
        seats: list[Seat] = [other] * setup.game.n_players
        names = [name] * setup.game.n_players
        if seat >= 0:
            seats[seat], names[seat] = Person(), "you"
        with remote_failures():
            return play(setup.game, setup.backbones[0].prompt, seats, names=names, seed=config.play.seed)


def _opponent(name: str, setup: Setup, workdir: Path, temperature: float) -> tuple[Bot, str]:
    """A bot by name (`bot`: the game's best), a run, a remote model, or for "" this run (random moves without one)."""
    bots = bot_names(setup.game.name)
    if name == "":
        name = str(workdir) if (workdir / "checkpoints").is_dir() else "random"
    found = contestants.find_contestant(bots[-1] if name == "bot" else name, setup)
    if found.weights is None:
        return found.plays, found.name
    ready = found.plays.team.prepare_for_sampling(found.weights)
    return PolicySeat(setup.game, found.plays, ready, temperature), found.name
