"""Evaluation: a policy against bots and other runs, from both seats, with confidence intervals.

    python launch.py --workdir=runs/mine --mode=eval
    python launch.py --config=... --workdir=runs/mine --mode=eval --config.eval.opponents="('random','runs/other@100')"

An opponent is a bot by name, the folder of another run, at its newest checkpoint or, with @STEP, at another one, or a
remote model, http://HOST:PORT/v1#MODEL.
With folders among them, everyone also plays everyone: the matrix of results (cross-play between seeds) and Elo.

With `eval.best_of` K above 1 every opponent is also met with moves chosen by value, in a row "OPPONENT, best of K": of
the policy's own move and K - 1 drawn ones, that whose position the critic holds best (`rollouts/best_of.py`).

Games that are small enough to be looked at whole also have a row "best_response": the exact exploitability of the
policy, with the probabilities that its answers have at the temperature of training, whatever `eval.temperature` is.

Puzzles are evaluated on the levels of the test part, in order. Greedy answers from the same start and in the same seats
make the same game, so repeats tell nothing new: intervals and Elo count distinct games (`repeats`). Two greedy
checkpoints of tic-tac-toe have two games to play, and their intervals say so; above `eval.temperature` 0 all count.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from envs.games.bots import Bot, make_bot
from envs.games.game import Game
from marl_jax.algorithms.algorithm import Examined
from marl_jax.devices.ahead import Ahead
from marl_jax.errors import RunError
from marl_jax.modes import setup as setups
from marl_jax.modes.contestants import Contestant, find_contestants, present_weights
from marl_jax.modes.exact_play import ExactPlay, Exploited
from marl_jax.modes.setup.games import GameSetup
from marl_jax.modes.setup.parts import Setup
from marl_jax.modes.task_evaluation import TaskEvaluation
from marl_jax.modes.verifier_evaluation import VerifierEvaluation
from marl_jax.rollouts import matches
from marl_jax.rollouts.matches import Match, Played, SeatedTeam
from marl_jax.running import stats
from marl_jax.running.metrics import replace_text
from marl_jax.serving.remote_bot import remote_failures

log = logging.getLogger(__name__)

BEST_RESPONSE = "best_response"


def evaluation_of(setup: Setup, part: str = "validation") -> Evaluation | TaskEvaluation | VerifierEvaluation:
    """What evaluates a run; `part` of a task's examples, by default the one by which checkpoints are chosen."""
    if setup.algorithm.verifies:
        return VerifierEvaluation(setup, part)
    return TaskEvaluation(setup, part) if setup.host else Evaluation(setup)


class Meeting(NamedTuple):
    """Where a team, contestant 0, meets an opponent: the match, its number there, and the weights of all others."""

    match: Match
    number: int
    others: tuple[dict | None, ...]


class Evaluation:
    """The matches of a run, compiled at their first use and then kept.

    evaluation = Evaluation(setup)
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
        self._examine = setup.algorithm.examine(setup) if setup.algorithm.examine else None
        self._exact = ExactPlay(self._game, self._team, setup.config.rollout.games) if is_exact(setup) else None
        if self._with_bots.walk and config.games > self._game.n_levels:
            log.info("eval.games is %d, and there are %d levels to evaluate on", config.games, self._game.n_levels)
        _warn_of_long_conversations(setup)

    def __call__(self, weights: dict, baselines: bool = False) -> list[dict[str, Any]]:
        """Against every opponent; a cooperative game also alone in all seats, and with `baselines` the bots likewise.

        With `eval.swap_roles` the team also plays "swapped", every role with the policy of the next: what is lost
        against "self" is what the policies have learnt for their own roles only. With `eval.best_of` every opponent is
        also met with moves chosen by value.

        The same games are dealt at every call, so that two evaluations differ by the policy only.
        """
        rows = [self._row(*planned) for planned in self._plan(weights, baselines)]
        if self._examine is not None:
            rows.append(self._examined(self._examine(weights)))
        for row in rows:
            log.info("evaluation, %s (%d games, %d distinct)", stats.describe(row), row["games"], row["distinct"])
        if self._exact is not None:
            found = self._exact(weights)
            rows.append(exact_row(found))
            words = "evaluation, %s: exploitability %.4f, nash conv %.4f (exact)"
            log.info(words, BEST_RESPONSE, found.exploitability, found.nash_conv)
        return rows

    def compile_ahead(self, ahead: Ahead, weights: dict, baselines: bool = False) -> None:
        """Begins to compile what a call needs."""
        for _, match, given, seating in self._plan(weights, baselines):
            match.compile_ahead(ahead, given, seating, self._key)
        if hasattr(self._examine, "compile_ahead"):
            self._examine.compile_ahead(ahead, weights)

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

    def _examined(self, found: Examined) -> dict[str, Any]:
        row = {}
        for metric, count in found.counts.items():
            if not count.total:  # a policy that never plays has no precision
                continue
            share = stats.wilson(count.right, count.total, self._config.confidence, count.distinct)
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
        seating = _in_turns(bots, self._config.games)
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
        and c.rollout.answer == "constrained"
        and c.env.context == "turn"
        and not any(setup.seating.has_bot(seat) for seat in seats)
    )


def exact_row(found: Exploited) -> dict[str, Any]:
    """The row of an evaluation; exact figures are intervals of no width."""
    figures = {"exploitability": found.exploitability, "nash_conv": found.nash_conv}
    figures |= {f"payoff_seat_{seat}": value for seat, value in enumerate(found.returns)}
    ends = {f"{name}_{end}": value for name, value in figures.items() for end in ("low", "high")}
    return {"opponent": BEST_RESPONSE, **figures, **ends}


def _warn_of_long_conversations(setup: Setup) -> None:
    """A conversation of a match may go on for a whole game, one of training ends with its rollout."""
    seats, turns = setup.game.n_players, setup.config.rollout.turns
    trained, played = -(-turns // seats), min(setup.history_turns, -(-setup.game.max_turns // seats))
    if played > trained:
        log.warning(
            "conversations of matches have up to %d answers, those of training %d (rollout.turns %d, %d seats): the "
            "policy never learnt from longer ones; more rollout.turns or an env.history_turns of %d make them alike",
            played, trained, turns, seats, trained,
        )  # fmt: skip


def new_match(game: Game, contestants: Sequence[SeatedTeam | Bot]) -> Match:
    """A match that walks through the levels of a puzzle; other games draw their starts."""
    return Match(game, contestants, walk=game.has_levels)


def _in_turns(match: Match, games: int) -> np.ndarray:
    return matches.in_turns(games, match.game.n_players, match.game.n_levels if match.walk else None)


def repeats(match: Match, played: Played, seating: np.ndarray, temperature: float) -> np.ndarray:
    """int [B]: a number for every game, equal for games that are one game played again.

    Those are greedy games with the same start and seats, where all of them went the same way. If some went another,
    chance had a part in them (a bot's choice, a random move in place of an answer), and each is a draw of its own.
    """
    games = len(seating)
    if temperature > 0:
        return np.arange(games)
    moves = np.where(np.arange(len(played.action))[:, None] < played.length, played.action, -1).T
    alike = _groups(np.column_stack([match.starts(games), seating]))
    ways = collections.defaultdict(set)
    for group, way in zip(alike, _groups(moves), strict=True):
        ways[group].add(way)
    return np.array([games + group if len(ways[group]) == 1 else i for i, group in enumerate(alike)])


def _groups(rows: np.ndarray) -> list[int]:
    """A number for each row [B, …], the same for equal rows."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)]


def match_metrics(
    game: Game, played: Played, seating: np.ndarray, confidence: float, same: np.ndarray | None = None
) -> dict[str, float]:
    """What contestant 0 achieved, each figure with its interval, the one that tells most first.

    Where games are won, the score is the share of points (a win 1, a draw ½), followed by the rates; where they are won
    by more or less, what was earned on average comes first. A cooperative game has the score it pays, and puzzles
    before it how many were solved.

    same  int [B], equal for games that are one game played again; left out, all differ. Rates and means are over all
          games, intervals as wide as for the distinct ones
    """
    total, length = jax.device_get((played.total, played.length))
    same = np.arange(len(length)) if same is None else same
    distinct = len(np.unique(same))
    found: dict[str, stats.Interval] = {}
    if game.competitive:
        seat = np.argmax(seating == 0, axis=1)
        points = _points(total.agent, seat)
        n = len(points)
        if game.stakes:
            mine = total.agent[np.arange(n), seat]
            found["payoff"] = stats.bootstrap(mine, confidence, distinct=distinct)
        found["score"] = stats.wilson(float(points.sum()), n, confidence, distinct)  # first: the headline
        found["win_rate"] = stats.wilson(int((points == 1).sum()), n, confidence, distinct)
        found["draw_rate"] = stats.wilson(int((points == 0.5).sum()), n, confidence, distinct)
        found["loss_rate"] = stats.wilson(int((points == 0).sum()), n, confidence, distinct)
        for i in range(game.n_players):
            mine, n_mine = points[seat == i], len(np.unique(same[seat == i]))
            if len(mine):
                found[f"win_rate_seat_{i}"] = stats.wilson(int((mine == 1).sum()), len(mine), confidence, n_mine)
    else:
        if played.success is not None:
            found["success"] = stats.wilson(int(np.sum(played.success)), len(length), confidence, distinct)
        # What was achieved; rewards for how it was gone about are for learning.
        found["score"] = stats.bootstrap(total.team + total.agent.mean(1), confidence, distinct=distinct)
    for name, flags in (played.endings or {}).items():
        found[name] = stats.wilson(int(np.sum(flags)), len(length), confidence, distinct)
    row = {"game_length": float(length.mean())}
    for name, interval in found.items():
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def _points(agent: np.ndarray, seat: np.ndarray) -> np.ndarray:
    """Of the player in `seat` [B], from the agent rewards [B, P]: 1 for a win, ½ for a draw, 0 for a loss."""
    rows = np.arange(len(seat))
    mine = agent[rows, seat]
    others = np.where(np.arange(agent.shape[1]) == seat[:, None], -np.inf, agent).max(1)
    return np.where(mine > others, 1.0, np.where(mine == others, 0.5, 0.0))


# ------------------------------------------------------------------------------------------- everyone against everyone


def round_robin(
    game: Game, contestants: Sequence[Contestant], games: int, key: jax.Array, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """[n, n]: the mean points of row against column (competitive), or the mean score of row and column together.

    A competitive game has no result against oneself: the diagonal is ½ there. Also, [n, n], how many games were
    distinct (`repeats`).
    """
    n = len(contestants)
    table, distinct = np.full((n, n), 0.5), np.zeros((n, n))
    programs: dict[tuple, Match] = {}
    for i, a in enumerate(contestants):
        for j, b in enumerate(contestants):
            if j < i or (i == j and game.competitive):
                continue
            kinds = (id(a.plays), id(b.plays))
            match = programs.setdefault(kinds, new_match(game, (a.plays, b.plays)))
            seating = matches.alone(games, game.n_players) if i == j else _in_turns(match, games)
            with remote_failures():
                played = jax.device_get(match((a.weights, b.weights), seating, key, temperature))
            distinct[i, j] = distinct[j, i] = len(np.unique(repeats(match, played, seating, temperature)))
            if game.competitive:
                points = _points(played.total.agent, np.argmax(seating == 0, axis=1)).mean()
                table[i, j], table[j, i] = points, 1 - points
            else:
                table[i, j] = table[j, i] = (played.total.team + played.total.agent.mean(1)).mean()
    return table, distinct


def ratings(table: np.ndarray, games: np.ndarray) -> np.ndarray:
    """Elo ratings [n] from a competitive table of mean points over `games` [n, n] of each pair."""
    return stats.elo(table * games, games)


def cross_play(table: np.ndarray) -> dict[str, float]:
    """Of a cooperative table: the mean score with oneself, with the others, and what is lost between the two."""
    own = float(np.diag(table).mean())
    others = float(table[~np.eye(len(table), dtype=bool)].mean()) if len(table) > 1 else own
    return {"self_play": own, "cross_play": others, "gap": own - others}


def main(config: ConfigDict, workdir: Path) -> list[dict[str, Any]]:
    """`--mode=eval`: a run's checkpoint, or the untuned model, on the games or episodes of the config."""
    setup = setups.make(config, workdir=workdir)
    if not setup.host and setup.game.competitive and not config.eval.opponents and not is_exact(setup):
        raise RunError(f"config.eval.opponents is empty, so there is nothing to evaluate in {config.env.name}")
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)  # what cannot be written is reported before anything is played
    with contextlib.closing(setup), jax.set_mesh(setup.mesh):
        step, weights = present_weights(setup, workdir)
        with contextlib.closing(evaluation_of(setup, config.eval.part)) as evaluation:
            rows = evaluation(weights, baselines=True)
            evaluation.write(workdir, step)
            result: dict[str, Any] = {"step": step, "rows": rows, **evaluation.everyone(workdir, weights)}
    if jax.process_index() == 0:
        replace_text(workdir / "evaluation.json", json.dumps(result, indent=2) + "\n")
        log.info("step %d, written to %s", step, workdir / "evaluation.json")
    return rows


def everyone(setup: Setup, contestants: list[Contestant]) -> dict[str, Any]:
    """The table of everyone with everyone, on levels that training never sees, and what follows from it."""
    c, game = setup.config.eval, setup.game.held_out()
    table, distinct = round_robin(game, contestants, c.games, jax.random.key(c.seed), c.temperature)
    names = [contestant.name for contestant in contestants]
    result: dict[str, Any] = {"names": names, "matrix": table.tolist(), "distinct": distinct.astype(int).tolist()}
    if game.competitive:
        result["elo"] = dict(zip(names, ratings(table, distinct).tolist(), strict=True))
    else:
        learnt = [i for i, contestant in enumerate(contestants) if contestant.weights is not None]
        result["cross_play"] = cross_play(table[np.ix_(learnt, learnt)])
    width = max(map(len, names))
    for i, name in enumerate(names):
        log.info("%*s  %s", width, name, " ".join(f"{x:6.3f}" for x in table[i]))
    log.info("%s", result.get("elo") or result.get("cross_play"))
    return result
