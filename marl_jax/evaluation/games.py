"""Evaluation in games: matches against bots, other runs and remote models.

An opponent is the name of a bot, the folder of another run, optionally with @STEP, or a remote model
(http://HOST:PORT/v1#MODEL). All metrics have confidence intervals. If some opponents are runs, all contestants also
play each other, which gives a matrix of results (cross-play) and Elo ratings.

With `eval.best_of` K > 1, a row "OPPONENT, best of K" uses moves chosen by value: the critic picks among the policy's
move and K - 1 sampled ones (`rollouts/seated_team.py`).

Games with a small game tree also have a row "best_response" with the exact exploitability of the policy at the training
temperature, independent of `eval.temperature`.

Puzzles are evaluated on the levels of the test split, in order. Greedy play from the same start in the same seats
repeats the same game, so intervals and Elo count distinct games (`repeats`). For example, two greedy checkpoints of
tic-tac-toe have only two distinct games. With `eval.temperature` > 0 all games count.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from envs.games.bots import make_bot
from marl_jax.algorithms.algorithm import HeldoutMetrics
from marl_jax.devices.aot import AotCompiler
from marl_jax.evaluation import intervals, matches
from marl_jax.evaluation.contestants import Contestant, find_contestants
from marl_jax.evaluation.exact_play import ExactPlay, Exploited, is_exact
from marl_jax.evaluation.match_results import in_turns, match_metrics, new_match, repeats
from marl_jax.evaluation.matches import Match
from marl_jax.evaluation.round_robin import everyone
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.serving.remote_bot import remote_failures
from marl_jax.setup.games import GameSetup

log = logging.getLogger(__name__)

BEST_RESPONSE = "best_response"


@runtime_checkable
class CompiledAhead(Protocol):
    """A held-out evaluation that can be compiled before it is called."""

    def compile_ahead(self, ahead: AotCompiler, params: dict) -> None:
        """Start to compile the evaluation."""
        ...


class Meeting(NamedTuple):
    """A match of a team, contestant 0, with an opponent.

    Attributes:
        match: The match.
        number: Index of the opponent among the contestants.
        others: Weights of all contestants except the team.
    """

    match: Match
    number: int
    others: tuple[dict | None, ...]


class GameEvaluation:
    """Evaluation matches of a run, compiled at their first use.

    evaluation = GameEvaluation(setup)
    rows = evaluation(weights)     # one dict per opponent: metrics with `_low` and `_high`
    """

    def __init__(self, setup: GameSetup):
        config = setup.config.eval
        self._config, self._setup = config, setup
        self._team = setup.seated()
        self._game = setup.game.held_out()
        self.opponents = find_contestants(config.opponents, setup)
        self._with_bots, self._meetings = self._seat(self._team)
        self._by_value = self._seat(setup.seated(best_of=config.best_of))[1] if config.best_of > 1 else {}
        self._swapped = new_match(self._game, (setup.seated(swapped=True),)) if config.swap_roles else None
        self._key = jax.random.key(config.seed)
        self._heldout_eval = setup.algorithm.heldout_eval(setup.parts) if setup.algorithm.heldout_eval else None
        self._exact = ExactPlay(self._game, self._team, setup.config.rollout.num_envs) if is_exact(setup) else None
        if self._with_bots.walk and config.games > self._with_bots.n_levels:
            log.info(
                "eval.games is %d, but there are only %d levels to evaluate on", config.games, self._with_bots.n_levels
            )
        _warn_of_long_conversations(setup)

    def __call__(self, weights: dict, baselines: bool = False) -> list[dict[str, Any]]:
        """Evaluate the team against every opponent and return one row per opponent.

        In cooperative games the team also plays alone in all seats ("self"), and so do the bots with `baselines`. With
        `eval.swap_roles` it also plays "swapped", with every role played by the policy of the next role; the difference
        from "self" shows how specialized the policies are. With `eval.best_of` every opponent is also played with moves
        chosen by value.

        Every call uses the same random keys, so that evaluations differ only by the policy.
        """
        rows = [self._row(*planned) for planned in self._plan(weights, baselines)]
        if self._heldout_eval is not None:
            rows.append(self._examined(self._heldout_eval(weights)))
        for row in rows:
            log.info("evaluation, %s (%d games, %d distinct)", intervals.describe(row), row["games"], row["distinct"])
        if self._exact is not None:
            exploited = self._exact(weights)
            rows.append(exact_row(exploited))
            message = "evaluation, %s: exploitability %.4f, nash conv %.4f (exact)"
            log.info(message, BEST_RESPONSE, exploited.exploitability, exploited.nash_conv)
        return rows

    def compile_ahead(self, ahead: AotCompiler, weights: dict, baselines: bool = False) -> None:
        """Start to compile the programs of a call."""
        for _, match, given, seating in self._plan(weights, baselines):
            match.compile_ahead(ahead, given, seating, self._key)
        if isinstance(self._heldout_eval, CompiledAhead):
            self._heldout_eval.compile_ahead(ahead, weights)

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """Return the round-robin results if some opponents are runs, otherwise {}."""
        if self._game.n_players == 1 or all(other.weights is None for other in self.opponents):
            return {}
        taken = [other.name for other in self.opponents]
        name = next(x for x in (workdir.name, str(workdir), f"{workdir} evaluated") if x not in taken)
        return everyone(self._setup, [Contestant(name, self._setup.seated(), weights), *self.opponents])

    def write(self, workdir: Path, step: int) -> None:
        """Do nothing; `records` logs games."""

    def close(self) -> None:
        """Do nothing."""

    def _examined(self, metrics: HeldoutMetrics) -> dict[str, Any]:
        row = {}
        for metric, count in metrics.counts.items():
            if not count.total:  # no precision for a kind of move that is never played
                continue
            share = intervals.wilson(count.right, count.total, self._config.confidence, count.distinct)
            row |= {metric: share.value, f"{metric}_low": share.low, f"{metric}_high": share.high}
        first = next(iter(metrics.counts.values()))
        return {"opponent": metrics.name, "games": first.total, "distinct": first.distinct, **row}

    def _seat(self, team: SeatedTeam) -> tuple[Match, dict[str, Meeting]]:
        """Build the matches of a team.

        Returns:
            The match with all bots, which share one program, and the meeting with each opponent by name.
        """
        bots = [other for other in self.opponents if is_cheap(other)]
        together = new_match(self._game, (team, *(bot.plays for bot in bots)))
        meetings = {bot.name: Meeting(together, number, (None,) * len(bots)) for number, bot in enumerate(bots, 1)}
        for other in self.opponents:
            if other.name not in meetings:
                meetings[other.name] = Meeting(new_match(self._game, (team, other.plays)), 1, (other.weights,))
        return together, meetings

    def _plan(self, weights: dict, baselines: bool) -> Iterator[tuple[str, Match, tuple, np.ndarray]]:
        """Yield the name, match, weights and seating of each row."""
        game, bots = self._game, self._with_bots
        alone = matches.alone(self._config.games, game.n_players)
        if not game.competitive:
            yield "self", bots, (weights, *(None for _ in bots.contestants[1:])), alone
            if self._swapped is not None:
                yield "swapped", self._swapped, (weights,), alone
            if baselines:
                for name, match in self._bots_alone.items():
                    yield f"{name} alone", match, (None,), alone
        seating = in_turns(bots, self._config.games)
        for meetings, how in ((self._meetings, ""), (self._by_value, f", best of {self._config.best_of}")):
            for other in self.opponents if meetings and game.n_players > 1 else ():
                match, number, others = meetings[other.name]
                yield other.name + how, match, (weights, *others), seating * number

    @functools.cached_property
    def _bots_alone(self) -> dict[str, Match]:
        names = dict.fromkeys(["random", *(other.name for other in self.opponents if other.weights is None)])
        return {name: new_match(self._game, (make_bot(self._game, name),)) for name in names}

    def _row(self, name: str, match: Match, weights: tuple, seating: np.ndarray) -> dict[str, Any]:
        c = self._config
        with remote_failures():
            played = jax.device_get(match(weights, seating, self._key, c.temperature))
        same = repeats(match, played, seating, c.temperature)
        metrics = match_metrics(match.game, played, seating, c.confidence, same)
        return {"opponent": name, "games": c.games, "distinct": len(np.unique(same)), **metrics}


def is_cheap(contestant: Contestant) -> bool:
    """Return whether a contestant is neither a team nor a remote model."""
    return contestant.weights is None and not hasattr(contestant.plays, "act_rows")


def exact_row(exploited: Exploited) -> dict[str, Any]:
    """Return the row of an exact evaluation, with intervals of zero width."""
    figures = {"exploitability": exploited.exploitability, "nash_conv": exploited.nash_conv}
    figures |= {f"payoff_seat_{seat}": value for seat, value in enumerate(exploited.returns)}
    ends = {f"{name}_{end}": value for name, value in figures.items() for end in ("low", "high")}
    return {"opponent": BEST_RESPONSE, **figures, **ends}


def _warn_of_long_conversations(setup: GameSetup) -> None:
    """Warn if conversations in matches are longer than those in training.

    A conversation of a match may last a full game, but in training it ends with the rollout.
    """
    seats, turns = setup.game.n_players, setup.config.rollout.unroll_length
    trained, played = -(-turns // seats), min(setup.history_turns, -(-setup.game.max_turns // seats))
    if played > trained:
        log.warning(
            "conversations have up to %d completions in matches, but only %d in training (rollout.unroll_length %d, %d "
            "seats); raise rollout.unroll_length or set env.history_turns to %d to make them equal",
            played,
            trained,
            turns,
            seats,
            trained,
        )
