"""What every rollout offers the training loop, and what an algorithm builds its rollout from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.games.game import Bot, Game
from marl_jax.learning.settings import LearnerSettings
from marl_jax.rollouts.opponents import Opponents
from marl_jax.samples import Samples
from models.tokenizers import Tokenizer


@runtime_checkable
class Rollout(Protocol):
    """Gathers the samples of a training step.

    A jitted rollout is a pure function whose state is a pytree of arrays. The state of the others is a JSON value.
    Either is part of the checkpoints of a run.
    """

    jitted: ClassVar[bool]

    def init(self, key: jax.Array, params: dict[str, dict]) -> Any:
        """Return the state before the first step."""
        ...

    def __call__(self, params: dict[str, dict], state: Any, key: jax.Array) -> tuple[Samples, Any, dict[str, Any]]:
        """Return the samples of a step, the next state and metrics.

        Args:
            params: The weights of every backbone, by its name.
            state: What `init` or the call before has returned.
            key: Source of all randomness of the step.
        """
        ...

    def changes_after(self, step: int) -> bool:
        """Return whether `after_update` changes the state after this step."""
        ...

    def after_update(self, state: Any, params: dict[str, dict], step: Any) -> Any:
        """Return the state after an update, for example with a snapshot of the new weights."""
        ...

    def checkpointed(self, step: int) -> None:
        """Forget what is only needed to repeat steps up to this one, which a checkpoint on disk covers."""
        ...

    def close(self) -> None:
        """End what the rollout has started."""
        ...


@runtime_checkable
class JittedRollout(Rollout, Protocol):
    """A rollout that is one program, placed on a mesh."""

    games_go_on: ClassVar[bool]

    def shardings(self, state: Any, rows: Callable[[Any], Any], like_params: Callable[[Any], Any]) -> Any:
        """Return the shardings of a state: `rows` for arrays with one entry per game, `like_params` for weights."""
        ...


@dataclasses.dataclass(frozen=True)
class GameParts:
    """What the rollout of a game is built from.

    Attributes:
        game: The rules.
        arguments: The arguments that all rollouts of games share, see `GameRollout`.
        opponents: Builds the other players; returns None where the learner only meets itself.
        bot: Builds a bot of the game by its name; "" is the best one.
    """

    game: Game
    arguments: dict[str, Any]
    opponents: Callable[[], Opponents | None]
    bot: Callable[[str], Bot]


@dataclasses.dataclass(frozen=True)
class TaskParts:
    """What the rollout of a host task is built from.

    Attributes:
        arguments: From the number of episodes per example and of candidates per turn to the arguments of
            `HostRollout`.
        process: The index of this process and the number of processes.
        place: Puts the samples of this process on the mesh, among those of all processes.
        tokenizers: The tokenizer of every backbone.
    """

    arguments: Callable[..., dict[str, Any]]
    process: tuple[int, int]
    place: Callable[[Samples], Samples]
    tokenizers: Sequence[Tokenizer]


@dataclasses.dataclass(frozen=True)
class RunParts:
    """What an algorithm builds its rollout from.

    Exactly one of `game` and `task` is set.

    Attributes:
        config: The run's config.
        algo: The settings of the algorithm.
        mesh: The devices.
        workdir: The folder of the run.
    """

    config: ConfigDict
    algo: LearnerSettings
    mesh: Mesh
    workdir: Path | None = None
    game: GameParts | None = None
    task: TaskParts | None = None
