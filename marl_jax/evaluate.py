"""Evaluation: a policy against bots and other runs, from both seats, with confidence intervals.

    python launch.py --workdir=runs/mine --mode=eval
    python launch.py --config=... --workdir=runs/mine --mode=eval --config.eval.opponents="('random','runs/other@100')"

An opponent is a bot by name, or the folder of another run, at its newest checkpoint or, with @STEP, at another one.
With folders among them, everyone also plays everyone: the matrix of results (cross-play between seeds) and Elo.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from envs.bots import Bot
from envs.game import Game
from envs.registry import held_out
from marl_jax import setup as setups
from marl_jax.errors import RunError
from marl_jax.rollouts import matches, opponents
from marl_jax.rollouts.matches import Match, Played, Player
from marl_jax.running import stats
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import replace_text
from marl_jax.setup import Setup

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Contestant:
    """Someone who can be evaluated: a name, how it plays, and its weights (None for a bot)."""

    name: str
    plays: Player | Bot
    weights: dict | None = None


class Evaluation:
    """The matches of a run, compiled at their first use and then kept.

        evaluation = Evaluation(setup)
        rows = evaluation(weights, key)     # one dict per opponent: figures with `_low` and `_high`
    """

    def __init__(self, setup: Setup):
        config = setup.config.eval
        self._config = config
        self._player = setup.player()
        self._game = held_out(setup.game)
        self._opponents = [contestant(name, setup) for name in config.opponents]
        self._matches = [Match(self._game, (self._player, other.plays)) for other in self._opponents]
        self._alone = Match(self._game, (self._player,))
        self._swapped = Match(self._game, (setup.player(swapped=True),)) if config.swap_roles else None
        self._key = jax.random.key(config.seed)

    def __call__(self, weights: dict, baselines: bool = False) -> list[dict[str, Any]]:
        """Against every opponent; a cooperative game also alone in all seats, and with `baselines` the bots likewise.

        With `eval.swap_roles` the team also plays "swapped", every role with the policy of the next: what is lost
        against "self" is what the policies have learnt for their own roles only.

        The same games are dealt at every call, so that two evaluations differ by the policy only.
        """
        game, c = self._game, self._config
        rows = []
        if not game.competitive:
            rows.append(self._row("self", self._alone, (weights,), alone=True))
            if self._swapped is not None:
                rows.append(self._row("swapped", self._swapped, (weights,), alone=True))
            if baselines:
                names = dict.fromkeys(["random", *(o.name for o in self._opponents if o.weights is None)])
                for name in names:
                    match = Match(game, (opponents.make_bot(game, name),))
                    rows.append(self._row(f"{name} alone", match, (None,), alone=True))
        for other, match in zip(self._opponents, self._matches, strict=True):
            if game.n_players > 1:
                rows.append(self._row(other.name, match, (weights, other.weights)))
        for row in rows:
            log.info("evaluation over %d games: %s", c.games, describe(row))
        return rows

    def _row(self, name: str, match: Match, weights, alone: bool = False) -> dict[str, Any]:
        c, n = self._config, match.game.n_players
        seating = matches.alone(c.games, n) if alone else matches.in_turns(c.games, n)
        played = match(weights, seating, self._key, c.temperature)
        return {"opponent": name, "games": c.games, **figures(match.game, played, np.asarray(seating), c.confidence)}


def figures(game: Game, played: Played, seating: np.ndarray, confidence: float) -> dict[str, float]:
    """What contestant 0 achieved, each figure with its interval: rates where games are won, else the score."""
    total, length = jax.device_get((played.total, played.length))
    found: dict[str, stats.Interval] = {}
    if game.competitive:
        seat = np.argmax(seating == 0, axis=1)
        points = _points(total.agent, seat)
        n = len(points)
        found["win_rate"] = stats.wilson(int((points == 1).sum()), n, confidence)
        found["draw_rate"] = stats.wilson(int((points == 0.5).sum()), n, confidence)
        found["loss_rate"] = stats.wilson(int((points == 0).sum()), n, confidence)
        for i in range(game.n_players):
            mine = points[seat == i]
            if len(mine):
                found[f"win_rate_seat_{i}"] = stats.wilson(int((mine == 1).sum()), len(mine), confidence)
    else:
        if played.success is not None:
            found["success"] = stats.wilson(int(np.sum(played.success)), len(length), confidence)
        # What was achieved; rewards for how it was gone about are for learning.
        found["score"] = stats.bootstrap(total.team + total.agent.mean(1), confidence)
    row = {"game_length": float(length.mean())}
    for name, interval in found.items():
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def describe(row: dict[str, Any]) -> str:
    """One line about a row of figures."""

    def interval(name):
        return stats.Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])

    names = [name for name in row if f"{name}_low" in row]
    return f"{row['opponent']}: " + ", ".join(f"{name.replace('_', ' ')} {interval(name)}" for name in names)


def _points(agent: np.ndarray, seat: np.ndarray) -> np.ndarray:
    """Of the player in `seat` [B], from the agent rewards [B, P]: 1 for a win, ½ for a draw, 0 for a loss."""
    rows = np.arange(len(seat))
    mine = agent[rows, seat]
    others = np.where(np.arange(agent.shape[1]) == seat[:, None], -np.inf, agent).max(1)
    return np.where(mine > others, 1.0, np.where(mine == others, 0.5, 0.0))


# ------------------------------------------------------------------------------------------- everyone against everyone


def round_robin(
    game: Game, contestants: Sequence[Contestant], games: int, key: jax.Array, temperature: float
) -> np.ndarray:
    """[n, n]: the mean points of row against column (competitive), or the mean score of row and column together.

    A competitive game has no result against oneself: the diagonal is ½ there.
    """
    n = len(contestants)
    table = np.full((n, n), 0.5)
    seating = matches.in_turns(games, game.n_players)
    programs: dict[tuple, Match] = {}
    for i, a in enumerate(contestants):
        for j, b in enumerate(contestants):
            if j < i or (i == j and game.competitive):
                continue
            kinds = (id(a.plays), id(b.plays))
            match = programs.setdefault(kinds, Match(game, (a.plays, b.plays)))
            played = jax.device_get(match((a.weights, b.weights), seating, key, temperature))
            if game.competitive:
                points = _points(played.total.agent, np.argmax(np.asarray(seating) == 0, axis=1)).mean()
                table[i, j], table[j, i] = points, 1 - points
            else:
                table[i, j] = table[j, i] = (played.total.team + played.total.agent.mean(1)).mean()
    return table


def ratings(table: np.ndarray, games: int) -> np.ndarray:
    """Elo ratings [n] from a competitive table of mean points over so many games a pair."""
    played = np.full(table.shape, float(games))
    np.fill_diagonal(played, 0.0)
    return stats.elo(np.where(played > 0, table * games, 0.0), played)


def cross_play(table: np.ndarray) -> dict[str, float]:
    """Of a cooperative table: the mean score with oneself, with the others, and what is lost between the two."""
    own = float(np.diag(table).mean())
    others = float(table[~np.eye(len(table), dtype=bool)].mean()) if len(table) > 1 else own
    return {"self_play": own, "cross_play": others, "gap": own - others}


# ------------------------------------------------------------------------------------------------------ contestants


def contestant(name: str, setup: Setup) -> Contestant:
    """A bot by name, or the folder of a run with @STEP behind it or not."""
    if name in opponents.bot_names(setup.game.name):
        return Contestant(name, opponents.make_bot(setup.game, name))
    folder, _, step = name.partition("@")
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        known = ", ".join(opponents.bot_names(setup.game.name))
        raise RunError(f"opponent {name!r} is no bot of {setup.game.name} ({known}) and no folder of a run")
    other = setups.make(ConfigDict(json.loads((path / "config.json").read_text())))
    if other.game != setup.game:
        raise RunError(f"opponent {name!r} plays {other.game}, this run plays {setup.game}")
    weights = restore_weights(other, path, int(step) if step else None)[1]
    # Runs of one shape share a compiled match; their weights are arguments.
    one = setup if _shape(setup) == _shape(other) else other
    player = dataclasses.replace(other.player(), policy=one.team, prompt=one.team.prompt(other.seat_policy))
    return Contestant(f"{path.name}@{step}" if step else path.name, player, weights)


def _shape(setup: Setup) -> tuple:
    """What two teams must agree in to be one program."""
    minds = tuple((m.name, m.policies, m.model, m.policy.lora, m.tokenizer.fingerprint) for m in setup.minds)
    return minds, setup.config.env.to_dict()


def restore_weights(setup: Setup, workdir: Path, step: int | None = None) -> tuple[int, dict[str, dict]]:
    """(step, weights of every model) from a run's newest checkpoint or that of `step`; step -2 means the best."""
    trained = {mind.name: mind.policy.player(mind.abstract()[0]) for mind in setup.learners}
    checkpoints = Checkpoints(workdir, read_only=True)
    wanted = checkpoints.best if step == -2 else step if step is not None and step >= 0 else None
    restored = checkpoints.restore({"trained": trained}, step=wanted, partial=True)
    checkpoints.close()
    if restored is None:
        raise RunError(f"{workdir} has no checkpoint")
    weights = {mind.name: restored.state["trained"].get(mind.name, {}) for mind in setup.minds}
    for mind in setup.minds:
        if "model" not in weights[mind.name]:  # it is only read: a frozen model, or the base of adapters
            weights[mind.name] = {**mind.policy.player(mind.weights_at_start()[1]), **weights[mind.name]}
    return restored.step, weights


def weights_as_they_come(setup: Setup) -> dict[str, dict]:
    """The weights of every model before any training."""
    parts = {mind.name: mind.weights_at_start() for mind in setup.minds}
    return setup.team.player({name: {**frozen, **trained} for name, (trained, frozen) in parts.items()})


def main(config: ConfigDict, workdir: Path) -> list[dict[str, Any]]:
    """`--mode=eval`: a run's checkpoint, or the model as it comes, against the opponents of the config."""
    setup = setups.make(config)
    with jax.set_mesh(setup.mesh):
        if (workdir / "checkpoints").is_dir():
            step, weights = restore_weights(setup, workdir, config.eval.step)
        else:
            names = ", ".join(dict.fromkeys(mind.config.name for mind in setup.minds))
            log.info("%s has no checkpoints: evaluating %s as it comes", workdir, names)
            step, weights = 0, weights_as_they_come(setup)
        rows = Evaluation(setup)(weights, baselines=True)
        result: dict[str, Any] = {"step": step, "rows": rows}
        others = [contestant(name, setup) for name in config.eval.opponents]
        if any(other.weights is not None for other in others):
            result |= _everyone(setup, [Contestant(workdir.name, setup.player(), weights), *others])
    workdir.mkdir(parents=True, exist_ok=True)
    replace_text(workdir / "evaluation.json", json.dumps(result, indent=2) + "\n")
    log.info("step %d, written to %s", step, workdir / "evaluation.json")
    return rows


def _everyone(setup: Setup, contestants: list[Contestant]) -> dict[str, Any]:
    c = setup.config.eval
    table = round_robin(setup.game, contestants, c.games, jax.random.key(c.seed), c.temperature)
    names = [contestant.name for contestant in contestants]
    result: dict[str, Any] = {"names": names, "matrix": table.tolist()}
    if setup.game.competitive:
        result["elo"] = dict(zip(names, ratings(table, c.games).tolist(), strict=True))
    else:
        result["cross_play"] = cross_play(table)
    width = max(map(len, names))
    for i, name in enumerate(names):
        log.info("%*s  %s", width, name, " ".join(f"{x:6.3f}" for x in table[i]))
    log.info("%s", result.get("elo") or result.get("cross_play"))
    return result
