"""Success of a run with the right, a blank and another game's picture.

    python -m benchmarks.pictures runs/pictures             # the newest checkpoint on the levels of its test split
    python -m benchmarks.pictures runs/pictures --games=512 --step=best

A blank picture has only the first tile of the game, and another game's picture shows the start of another level. The
prompt does not change. A policy that reads its pictures drops to the success of random moves, which is the last row, or
below it: greedy moves without information may run into the same wall until the end.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

from envs.games.bots import make_bot
from envs.games.game import Game, State
from envs.games.picture import Picture
from envs.games.roles import puzzle_state
from marl_jax import setup as setups
from marl_jax.evaluation import matches
from marl_jax.evaluation.match_results import match_metrics, new_match, repeats
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.schema import saved
from marl_jax.setup.games import GameSetup
from marl_jax.setup.weights import restore_weights

PICTURES = ("right", "blank", "another game's")
SHIFT = 7  # levels between a game and the one whose picture it shows


def with_picture(seated: SeatedTeam, picture: Picture) -> SeatedTeam:
    """Return the team with other pictures in its prompts."""
    backbones = tuple(
        dataclasses.replace(backbone, policy=dataclasses.replace(backbone.policy, medium=picture))
        for backbone in seated.team.backbones
    )
    return dataclasses.replace(seated, team=dataclasses.replace(seated.team, backbones=backbones))


def changed(game: Game, picture: Picture, kind: str) -> Picture:
    """Return the pictures of one of `PICTURES`."""

    def blank(state: State, seat: jax.Array) -> jax.Array:
        return jnp.zeros((picture.n_codes,), jnp.int32)

    def another(state: State, seat: jax.Array) -> jax.Array:
        level = (puzzle_state(state).level + SHIFT) % game.n_levels
        return picture.cells(game.reset_level(level), seat)

    cells = {"right": picture.cells, "blank": blank, "another game's": another}[kind]
    return dataclasses.replace(picture, cells=cells)


def measure(folder: Path, games: int, step: str) -> list[dict]:
    """Return success with its interval by kind of picture, and that of random moves."""
    setup = setups.make(saved.read(folder), workdir=folder)
    assert isinstance(setup, GameSetup)
    picture = setup.team.medium
    if not isinstance(picture, Picture) or not setup.game.has_levels:
        raise SystemExit(f"{folder} is not a run of a puzzle with env.observation 'image' or 'both'")
    game = setup.game.held_out()
    players = {kind: with_picture(setup.seated(), changed(game, picture, kind)) for kind in PICTURES}
    weights, seating = restore_weights(setup, folder, step)[1], matches.alone(games, game.n_players)
    rows = []
    for name, player in [*players.items(), ("random moves", make_bot(game, "random"))]:
        match = new_match(game, (player,))
        given = weights if isinstance(player, SeatedTeam) else None
        played = jax.device_get(match((given,), seating, jax.random.key(0), 0.0))
        metrics = match_metrics(game, played, seating, 0.95, repeats(match, played, seating, 0.0))
        rows.append({"picture": name, **{key: metrics[key] for key in ("success", "success_low", "success_high")}})
    return rows


def main() -> None:
    """Measure a run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the run")
    parser.add_argument("--games", type=int, default=256, help="number of games")
    parser.add_argument("--step", default="newest", help="step of the checkpoint, newest or best")
    args = parser.parse_args()
    for row in measure(args.folder, args.games, args.step):
        print(f"{row['picture']:16} {row['success']:.3f} [{row['success_low']:.3f}, {row['success_high']:.3f}]")


if __name__ == "__main__":
    main()
