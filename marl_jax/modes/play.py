"""`--mode=play`: play in the terminal against bots or checkpoints.

    python launch.py --mode=play --config=experiments/tic_tac_toe_selfplay.py --config.play.opponent=minimax
    python launch.py --mode=play --workdir=runs/mine                    # against the newest checkpoint

Moves are typed as a model would write them. `prompt` prints the exact prompt of a model in the same seat.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax
from ml_collections import ConfigDict

from envs.games.bots import bot_names
from envs.games.game import State
from marl_jax import setup as setups
from marl_jax.errors import RunError
from marl_jax.evaluation import contestants
from marl_jax.interactive import task_terminal
from marl_jax.interactive.game_table import PolicySeat
from marl_jax.interactive.game_terminal import Person, Seat, play
from marl_jax.rollouts.host.episodes import Episode
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.serving.remote import check_reachable
from marl_jax.serving.remote_bot import remote_failures
from marl_jax.setup import GameSetup, TaskSetup
from marl_jax.setup.weights import present_weights


def main(config: ConfigDict, workdir: Path) -> State | Episode | None:
    """Play a game with the user in seat `play.seat` and `play.opponent` in the others."""
    check_reachable([config.play.opponent], "play.opponent")
    setup = setups.make(config, workdir=workdir)
    if isinstance(setup, TaskSetup):
        with contextlib.closing(setup):
            return task_terminal.play(setup, present_weights(setup, workdir)[1])
    seat = config.play.seat
    if not -1 <= seat < setup.game.n_players:
        raise RunError(f"config.play.seat is {seat}, but must be from 0 to {setup.game.n_players - 1}, or -1 to watch")
    with jax.set_mesh(setup.mesh):
        alone = setup.game.n_players == 1 and seat == 0
        other, name = (
            (Person(), "you") if alone else _opponent(config.play.opponent, setup, workdir, config.play.temperature)
        )
        seats: list[Seat] = [other] * setup.game.n_players
        names = [name] * setup.game.n_players
        if seat >= 0:
            seats[seat], names[seat] = Person(), "you"
        prompt = setup.backbones[0].prompt
        assert prompt is not None
        with remote_failures():
            return play(setup.game, prompt, seats, names=names, seed=config.play.seed)


def _opponent(name: str, setup: GameSetup, workdir: Path, temperature: float) -> tuple[Seat, str]:
    """Find an opponent and its name.

    Args:
        name: Bot ("bot" is the strongest one), folder of a run or remote model; "" for this run, or random moves if it
            has no checkpoints.
        setup: Parts of the run.
        workdir: Folder of the run.
        temperature: Sampling temperature.
    """
    bots = bot_names(setup.game.name)
    if name == "":
        name = str(workdir) if (workdir / "checkpoints").is_dir() else "random"
    opponent = contestants.find_contestant(bots[-1] if name == "bot" else name, setup)
    if not isinstance(opponent.plays, SeatedTeam):
        return opponent.plays, opponent.name
    assert opponent.weights is not None
    params = opponent.plays.team.prepare_for_sampling(opponent.weights)
    return PolicySeat(setup.game, opponent.plays, params, temperature), opponent.name
