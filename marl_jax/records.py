"""Games as a person reads them: played on the device, then followed again move by move on the host."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

import jax
import numpy as np

from envs.game import Game
from marl_jax.conversation_logs import GameRecord, Move
from marl_jax.matches import Match, Played, Player
from models.tokenizers import Tokenizer


def write_out(
    match: Match, played: Played, seating: jax.Array, key: jax.Array, names: Sequence[str], tokenizer: Tokenizer,
    source: str,
) -> list[GameRecord]:  # fmt: skip
    """The games of a call of `match` with this seating and key; `names` are the contestants'."""
    played, seating = jax.device_get((played, seating))
    starts = match.start_keys(key, len(seating))
    return [_follow(match, played, seating[i], starts[i], i, names, tokenizer, source) for i in range(len(seating))]


def _follow(match: Match, played: Played, seats: np.ndarray, key, row: int, names, tokenizer, source) -> GameRecord:
    game = match.game
    reset, player_of, step = _programs(game)
    draw = importlib.import_module(f"envs.{game.name}.draw")
    state = reset(key)
    start, moves = (draw.board(state), draw.svg(state)), []
    for turn in range(int(played.length[row])):
        seat = int(player_of(state))
        action = int(played.action[turn, row])
        who = match.contestants[seats[seat]]
        prompt, answer = "", game.action_names[action]
        if isinstance(who, Player):
            prompt = who.prompt.first_text(state, seat)
            answer = tokenizer.decode(played.answer[turn, row, : played.answer_length[turn, row]].tolist())
        state, reward = step(state, action)
        paid = tuple(float(x) for x in np.asarray(reward.team + reward.agent + reward.process))
        moves.append(
            Move(seat, prompt, answer, game.action_names[action], paid, board=draw.board(state), svg=draw.svg(state))
        )
    scores = played.total.team[row] + played.total.agent[row] + played.total.process[row]
    outcome, winner = "end", -1
    if game.competitive:
        agent = played.total.agent[row]
        best = int(np.argmax(agent))
        outcome, winner = ("win", best) if (agent < agent[best]).any() else ("draw", -1)
    return GameRecord(
        game=game.name,
        players=tuple(names[c] for c in seats),
        moves=tuple(moves),
        outcome=outcome,
        scores=tuple(float(x) for x in scores),
        winner=winner,
        start_board=start[0],
        start_svg=start[1],
        source=source,
    )


@functools.cache
def _programs(game: Game):
    return jax.jit(game.reset), jax.jit(game.player), jax.jit(game.step)
