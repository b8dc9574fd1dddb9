"""Evaluation in a game: matches against bots and other runs, from all seats, with confidence intervals.

An opponent is a bot by name, the folder of another run, at its newest checkpoint or, with @STEP, at another one, or a
remote model, http://HOST:PORT/v1#MODEL.
With folders among them, everyone also plays everyone: the matrix of results (cross-play between seeds) and Elo.

With `eval.best_of` K above 1 every opponent is also met with moves chosen by value, in a row "OPPONENT, best of K": of
the policy's own move and K - 1 drawn ones, that whose position the critic holds best (`rollouts/seated_team.py`).

Games that are small enough to be looked at whole also have a row "best_response": the exact exploitability of the
policy, with the probabilities that its answers have at the temperature of training, whatever `eval.temperature` is.

Puzzles are evaluated on the levels of the test part, in order. Greedy answers from the same start and in the same seats
make the same game, so repeats tell nothing new: intervals and Elo count distinct games (`repeats`). Two greedy
checkpoints of tic-tac-toe have two games to play, and their intervals say so; above `eval.temperature` 0 all count.
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
from marl_jax.evaluation.exact_play import ExactPlay, Exploited
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
    """Where a team, contestant 0, meets an opponent: the match, its number there, and the weights of all others."""

    match: Match
    number: int
    others: tuple[dict | None, ...]


class GameEvaluation:
    """The matches of a run, compiled at their first use and then kept.

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
            log.info("eval.games is %d, and there are %d levels to evaluate on", config.games, self._with_bots.n_levels)
        _warn_of_long_conversations(setup)

    def __call__(self, weights: dict, baselines: bool = False) -> list[dict[str, Any]]:
        """Against every opponent; a cooperative game also alone in all seats, and with `baselines` the bots likewise.

        With `eval.swap_roles` the team also plays "swapped", every role with the policy of the next: what is lost
        against "self" is what the policies have learnt for their own roles only. With `eval.best_of` every opponent is
        also met with moves chosen by value.

        The same games are dealt at every call, so that two evaluations differ by the policy only.
        """
        rows = [self._row(*planned) for planned in self._plan(weights, baselines)]
        if self._heldout_eval is not None:
            rows.append(self._examined(self._heldout_eval(weights)))
        for row in rows:
            log.info("evaluation, %s (%d games, %d distinct)", intervals.describe(row), row["games"], row["distinct"])
        if self._exact is not None:
            found = self._exact(weights)
            rows.append(exact_row(found))
            words = "evaluation, %s: exploitability %.4f, nash conv %.4f (exact)"
            log.info(words, BEST_RESPONSE, found.exploitability, found.nash_conv)
        return rows

    def compile_ahead(self, ahead: AotCompiler, weights: dict, baselines: bool = False) -> None:
        """Begins to compile what a call needs."""
        for _, match, given, seating in self._plan(weights, baselines):
            match.compile_ahead(ahead, given, seating, self._key)
        if isinstance(self._heldout_eval, CompiledAhead):
            self._heldout_eval.compile_ahead(ahead, weights)

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """The table of everyone with everyone, where other runs are among the opponents; {} elsewhere."""
        if self._game.n_players == 1 or all(other.weights is None for other in self.opponents):
            return {}
        taken = [other.name for other in self.opponents]
        name = next(x for x in (workdir.name, str(workdir), f"{workdir} evaluated") if x not in taken)
        return everyone(self._setup, [Contestant(name, self._setup.seated(), weights), *self.opponents])

    def write(self, workdir: Path, step: int) -> None:
        """Nothing: games are logged by `records`."""

    def close(self) -> None:
        """Nothing has to be ended."""

    def _examined(self, found: HeldoutMetrics) -> dict[str, Any]:
        row = {}
        for metric, count in found.counts.items():
            if not count.total:  # a policy that never plays has no precision
                continue
            share = intervals.wilson(count.right, count.total, self._config.confidence, count.distinct)
            row |= {metric: share.value, f"{metric}_low": share.low, f"{metric}_high": share.high}
        first = next(iter(found.counts.values()))
        return {"opponent": found.name, "games": first.total, "distinct": first.distinct, **row}

    def _seat(self, team: SeatedTeam) -> tuple[Match, dict[str, Meeting]]:
        """The match of a team with all bots, in which one program does for all of them, and where it meets whom."""
        bots = [other for other in self.opponents if is_cheap(other)]
        together = new_match(self._game, (team, *(bot.plays for bot in bots)))
        meetings = {bot.name: Meeting(together, number, (None,) * len(bots)) for number, bot in enumerate(bots, 1)}
        for other in self.opponents:
            if other.name not in meetings:
                meetings[other.name] = Meeting(new_match(self._game, (team, other.plays)), 1, (other.weights,))
        return together, meetings

    def _plan(self, weights: dict, baselines: bool) -> Iterator[tuple[str, Match, tuple, np.ndarray]]:
        """What is played: the name of each row, its match, the contestants' weights, and who sits where."""
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
        found = match_metrics(match.game, played, seating, c.confidence, same)
        return {"opponent": name, "games": c.games, "distinct": len(np.unique(same)), **found}


def is_cheap(contestant: Contestant) -> bool:
    """Whether it is a bot of the game: no weights, and no price on a move."""
    return contestant.weights is None and not hasattr(contestant.plays, "act_rows")


def is_exact(setup: GameSetup) -> bool:
    """Whether the policy of a team can be computed: prompts that stand alone, and answers that name an action."""
    c = setup.config
    seats = range(setup.game.n_players)
    return (
        setup.game.n_deals > 0
        and c.rollout.completion == "constrained"
        and c.env.context == "turn"
        and not any(setup.seating.has_bot(seat) for seat in seats)
    )


def exact_row(found: Exploited) -> dict[str, Any]:
    """The row of an evaluation; exact figures are intervals of no width."""
    figures = {"exploitability": found.exploitability, "nash_conv": found.nash_conv}
    figures |= {f"payoff_seat_{seat}": value for seat, value in enumerate(found.returns)}
    ends = {f"{name}_{end}": value for name, value in figures.items() for end in ("low", "high")}
    return {"opponent": BEST_RESPONSE, **figures, **ends}


def _warn_of_long_conversations(setup: GameSetup) -> None:
    """A conversation of a match may go on for a whole game, one of training ends with its rollout."""
    seats, turns = setup.game.n_players, setup.config.rollout.unroll_length
    trained, played = -(-turns // seats), min(setup.history_turns, -(-setup.game.max_turns // seats))
    if played > trained:
        log.warning(
            "conversations of matches have up to %d answers, those of training %d (rollout.unroll_length "
            "%d, %d seats): the "
            "policy never learnt from longer ones; more rollout.unroll_length or an env.history_turns of %d "
            "make them alike",
            played,
            trained,
            turns,
            seats,
            trained,
        )
