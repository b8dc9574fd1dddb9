"""Readable records of games, which are played on the device and replayed on the host."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from envs.games import view
from envs.games.game import Game
from marl_jax.evaluation import matches, task_records
from marl_jax.evaluation.matches import Match, Played
from marl_jax.evaluation.verifier import NoLog
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.running.conversation_logs import GameRecord, Move
from marl_jax.setup.games import GameSetup
from marl_jax.setup.tasks import TaskSetup

PARSE_FAILURE = "names no legal move; a random one was played"


def log_of(setup: GameSetup | TaskSetup) -> Any:
    """Build the log of a run, a function (params, key, step) -> records."""
    if setup.algorithm.verifies:
        return NoLog()
    return task_records.EpisodeLog(setup) if isinstance(setup, TaskSetup) else GameLog(setup)


class GameLog:
    """Records of a few self-play games at the training temperature."""

    def __init__(self, setup: GameSetup):
        self._setup = setup
        table = functools.partial(Match, setup.game, (setup.seated(),), values=True)
        self._table = setup.programs.get("logged games", table)

    def __call__(self, params: dict, key: jax.Array, step: int) -> list[GameRecord]:
        """Play and record the games of a step."""
        setup = self._setup
        seating = matches.alone(setup.config.log.games, setup.game.n_players)
        played = self._table((params,), seating, key, setup.config.rollout.temperature)
        return write_out(self._table, played, seating, key, [setup.seat_labels()], "train")

    def close(self) -> None:
        """Do nothing."""


def write_out(
    match: Match,
    played: Played,
    seating: jax.Array | np.ndarray,
    key: jax.Array,
    names: Sequence[str | Sequence[str]],
    source: str,
) -> list[GameRecord]:
    """Record the games of a call of a match.

    Args:
        match: The match.
        played: Result of the call.
        seating: int32 [B, P]. Seating of the call.
        key: Random key of the call.
        names: Name of each contestant, for all seats or for each.
        source: Source of the games, such as "train".
    """
    played, seats = jax.device_get((played, seating))
    starts = match.start_keys(key, len(seats))
    return [_follow(match, played, seats[i], starts[i], i, names, source) for i in range(len(seats))]


def _follow(match: Match, played: Played, seats: np.ndarray, key, row: int, names, source) -> GameRecord:
    game = match.game
    player_of, step = _programs(game)
    state = match.reset(key, row)
    start_board, start_svg = view.board(game, state), view.svg(game, state)
    moves = []
    pending = [""] * game.n_players  # events since the last turn of each seat, for conversations
    for turn in range(int(played.length[row])):
        seat = int(player_of(state))
        action = int(played.action[turn, row])
        who = match.contestants[seats[seat]]
        prompt, image, answer, error, value = "", "", game.action_names[action], "", None
        if isinstance(who, SeatedTeam) and not who.seating.has_bot(seat):
            texts = who.prompt(seat, turn)
            prompt, image = texts.opening_text(state, seat), texts.image(state, seat)
            if not played.fresh[turn, row]:
                prompt = texts.close_text + pending[seat] + texts.ask_text(seat)
            answer = who.tokenizer(seat, turn).decode(
                played.answer[turn, row, : played.completion_length[turn, row]].tolist()
            )
            error = PARSE_FAILURE if played.failed[turn, row] else ""
            if played.values is not None and matches.has_value(who.backbone(seat, turn).policy):
                value = float(played.values[turn, row])
        before, pending[seat] = state, ""
        state, reward = step(state, action)
        for other, c in enumerate(seats):
            if isinstance(match.contestants[c], SeatedTeam) and match.contestants[c].history_turns:
                pending[other] += match.contestants[c].prompt(other, turn).event_text(before, action, state, other)
        rewards = tuple(float(x) for x in np.asarray(reward.team + reward.agent + reward.process))
        board, svg = view.board(game, state), view.svg(game, state)
        name = game.action_names[action]
        moves.append(Move(seat, prompt, answer, name, rewards, board, svg, error=error, value=value, image=image))
    scores = played.total.team[row] + played.total.agent[row]
    outcome, winner = "end", -1
    if game.competitive:
        agent = played.total.agent[row]
        best = int(np.argmax(agent))
        outcome, winner = ("win", best) if (agent < agent[best]).any() else ("draw", -1)
    return GameRecord(
        game=game.name,
        players=tuple(names[c] if isinstance(names[c], str) else names[c][seat] for seat, c in enumerate(seats)),
        moves=tuple(moves),
        outcome=outcome,
        scores=tuple(float(x) for x in scores),
        winner=winner,
        start_board=start_board,
        start_svg=start_svg,
        source=source,
        solved=bool(played.success[row]) if played.success is not None else None,
        roles=tuple(game.seat_names),
    )


@functools.cache
def _programs(game: Game):
    return jax.jit(game.player), jax.jit(game.step)
