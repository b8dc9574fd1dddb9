"""Games that users play on the page, kept in memory."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.games import view
from marl_jax.errors import RunError
from marl_jax.interactive.game_table import GameTable
from marl_jax.serving.http.errors import ApiError
from marl_jax.web.page.offers import Offer
from marl_jax.web.page.opponents import Opponent, OpponentMove

MOST_GAMES = 64
YOU = "you"


@dataclasses.dataclass(eq=False)
class LobbyGame:
    """One game on the page.

    Attributes:
        id: Id of the game.
        words: Title of the game.
        table: The game in progress.
        seat: Seat of the user.
        opponent: Player of all other seats; None in games with one seat.
        decisions: Moves of the opponent by turn.
        lock: Lock for requests to this game.
    """

    id: str
    words: str
    table: GameTable
    seat: int
    opponent: Opponent | None
    decisions: dict[int, OpponentMove] = dataclasses.field(default_factory=dict)
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    async def take(self, action: int, decision: OpponentMove | None = None) -> None:
        """Play an action for the seat to move."""
        if decision is not None:
            self.decisions[len(self.table.moves)] = decision
        taken = await asyncio.to_thread(self.table.take, action)
        if self.opponent is not None:
            await asyncio.to_thread(self.opponent.observe, taken)

    async def advance(self) -> None:
        """Play the opponent's moves until it is the user's turn."""
        while not self.table.done and self.table.mover != self.seat:
            assert self.opponent is not None  # games with several seats have an opponent
            decision = await self.opponent.act(self.table)
            await self.take(decision.action, decision)

    def show(self) -> dict[str, Any]:
        """Return everything that the page shows.

        During the game, that is only what the user's seat may see.
        """
        table, game = self.table, self.table.game
        over, seen = table.done, None if table.done else self.seat
        your_turn = not over and table.mover == self.seat
        legal = [int(action) for action in np.flatnonzero(table.legal)] if your_turn else []
        places = view.targets(game)
        return {
            "id": self.id,
            "game": self.words,
            "seat": self.seat,
            "seats": [table.seat_label(seat) for seat in range(game.n_players)],
            "turn": len(table.moves),
            "done": over,
            "your_turn": your_turn,
            "svg": view.svg(game, table.state, seen),
            "board": view.board(game, table.state, seen),
            "legal": [{"action": a, "words": table.describe(a), "place": places.get(a)} for a in legal],
            "moves": [self._move(number) for number in range(len(table.moves))],
            "paid": [float(x) for x in table.total_reward],
            "result": table.result() if over else [],
            "prompt": table.prompt_text(self.seat) if your_turn else "",
            "image": table.prompt.image(table.state, self.seat) if your_turn else "",
        }

    def _move(self, number: int) -> dict[str, Any]:
        """Return one move.

        The prompts and completions of other seats can reveal hidden cards, so they are shown only after the game.
        """
        taken, decision = self.table.moves[number], self.decisions.get(number)
        move = {
            "seat": taken.seat,
            "words": self.table.describe(taken.action),
            "reward": [float(x) for x in taken.reward],
            "error": decision.error if decision else "",
        }
        if self.table.done and decision:
            move |= {"prompt": decision.prompt, "answer": decision.answer}
        return move


class GameLobby:
    """The games in progress by id."""

    def __init__(self, offers: Mapping[str, Offer], most: int = MOST_GAMES):
        self.offers, self._most = dict(offers), most
        self._games: collections.OrderedDict[str, LobbyGame] = collections.OrderedDict()

    def describe(self) -> list[dict[str, Any]]:
        """Return the games that can be played, with their opponents."""
        return [
            {"id": id_, "words": offer.words, "roles": offer.roles, "opponents": offer.opponents}
            for id_, offer in self.offers.items()
        ]

    async def begin(self, name: str, opponent: str, seat: int, seed: int, temperature: float) -> dict[str, Any]:
        """Start a game and play the opponent's moves before the user's first turn."""
        offer = self.offers.get(name)
        if offer is None:
            choices = ", ".join(self.offers)
            raise ApiError(404, f"game is {name[:100]!r}, but must be one of: {choices}", param="game")
        if offer.opponents and opponent not in offer.opponents:
            choices = ", ".join(offer.opponents)
            raise ApiError(400, f"opponent is {opponent[:100]!r}, but must be one of: {choices}", param="opponent")
        played = await asyncio.to_thread(self._deal, offer, opponent, seat, seed, temperature)
        self._games[played.id] = played
        while len(self._games) > self._most:
            self._games.popitem(last=False)
        async with played.lock:
            await played.advance()
            return await asyncio.to_thread(played.show)

    async def move(self, id_: str, turn: int, action: int) -> dict[str, Any]:
        """Play the user's move at a turn and the opponent's replies."""
        played = self._find(id_)
        async with played.lock:
            table = played.table
            if turn != len(table.moves) or table.done or table.mover != played.seat:
                raise ApiError(409, f"turn is {turn}, but it is not your turn; the game is at turn {len(table.moves)}")
            if not (0 <= action < table.game.n_actions and table.legal[action]):
                raise ApiError(400, f"action is {action}, which is not legal here", param="action")
            await played.take(action)
            await played.advance()
            return await asyncio.to_thread(played.show)

    async def show(self, id_: str) -> dict[str, Any]:
        """Return the current state of a game; one whose opponent failed continues here."""
        played = self._find(id_)
        async with played.lock:
            await played.advance()
            return await asyncio.to_thread(played.show)

    def _find(self, id_: str) -> LobbyGame:
        if id_ not in self._games:
            raise ApiError(404, "this game no longer exists; start a new one")
        self._games.move_to_end(id_)
        return self._games[id_]

    def _deal(self, offer: Offer, opponent: str, seat: int, seed: int, temperature: float) -> LobbyGame:
        try:
            game, prompt = offer.table
            if not 0 <= seat < game.n_players:
                raise ApiError(400, f"seat is {seat}, but must be 0 to {game.n_players - 1}", param="seat")
            other = None if game.n_players == 1 else offer.opponent(opponent, temperature)
        except RunError as error:
            raise ApiError(400, str(error)) from None
        names = [YOU if i == seat else opponent for i in range(game.n_players)]
        return LobbyGame(secrets.token_urlsafe(12), offer.words, GameTable(game, prompt, names, seed), seat, other)
