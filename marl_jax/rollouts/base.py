"""Interface of rollouts, and the parts of a run that algorithms build them from."""

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
    """A source of training samples, called once per step.

    A jitted rollout is a pure function whose state is a pytree of arrays. The state of other rollouts is a JSON value.
    The state is part of every checkpoint.
    """

    jitted: ClassVar[bool]

    def init(self, key: jax.Array, params: dict[str, dict]) -> Any:
        """Return the state before the first step."""
        ...

    def __call__(self, params: dict[str, dict], state: Any, key: jax.Array) -> tuple[Samples, Any, dict[str, Any]]:
        """Return the samples of a step, the next state and metrics.

        Args:
            params: Weights of every backbone, by name.
            state: State returned by `init` or by the previous call.
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
        """Discard data that is only needed to repeat steps before a saved checkpoint."""
        ...

    def close(self) -> None:
        """Stop everything that the rollout has started."""
        ...


@runtime_checkable
class JittedRollout(Rollout, Protocol):
    """A rollout that is one jitted program on a mesh."""

    def shardings(self, state: Any, rows: Callable[[Any], Any], like_params: Callable[[Any], Any]) -> Any:
        """Return the shardings of a state.

        Args:
            state: State of the rollout, as arrays or shapes.
            rows: Maps a tree of arrays with one entry per game to its shardings.
            like_params: Maps a tree of weights to its shardings.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class WrappedRollout:
    """Base class of rollouts that change the games of another one.

    Their state holds the state of the wrapped rollout as `inner`.

    Attributes:
        rollout: The wrapped rollout.
    """

    rollout: Any

    def after_update(self, state: Any, params: dict[str, dict], step: Any) -> Any:
        """Update the state of the wrapped rollout."""
        return dataclasses.replace(state, inner=self.rollout.after_update(state.inner, params, step))

    def changes_after(self, step: int) -> bool:
        """Return whether the wrapped rollout changes its state after this step."""
        return self.rollout.changes_after(step)

    def checkpointed(self, step: int) -> None:
        """Pass the call to the wrapped rollout."""
        self.rollout.checkpointed(step)

    def close(self) -> None:
        """Close the wrapped rollout."""
        self.rollout.close()


@dataclasses.dataclass(frozen=True)
class GameParts:
    """Parts of a run that the rollout of a game is built from.

    Attributes:
        game: Rules of the game.
        arguments: Arguments that all rollouts of games share; see `GameRollout`.
        opponents: Builds the other players; returns None if the learner only plays itself.
        bot: Builds a bot of the game by name; "" is the best one.
    """

    game: Game
    arguments: dict[str, Any]
    opponents: Callable[[], Opponents | None]
    bot: Callable[[str], Bot]


@dataclasses.dataclass(frozen=True)
class TaskParts:
    """Parts of a run that the rollout of a host task is built from.

    Attributes:
        arguments: Maps the numbers of episodes per example and of candidates per turn to the arguments of
            `HostRollout`.
        process: Index of this process and number of processes.
        place: Puts the samples of this process on the mesh, among those of all processes.
        tokenizers: Tokenizer of every backbone.
    """

    arguments: Callable[..., dict[str, Any]]
    process: tuple[int, int]
    place: Callable[[Samples], Samples]
    tokenizers: Sequence[Tokenizer]


@dataclasses.dataclass(frozen=True)
class RunParts:
    """Parts of a run that an algorithm builds its rollout from.

    Exactly one of `game` and `task` is set.

    Attributes:
        config: Config of the run.
        algo: Settings of the algorithm.
        mesh: Device mesh.
        workdir: Folder of the run.
        game: Parts of a game.
        task: Parts of a host task.
    """

    config: ConfigDict
    algo: LearnerSettings
    mesh: Mesh
    workdir: Path | None = None
    game: GameParts | None = None
    task: TaskParts | None = None
