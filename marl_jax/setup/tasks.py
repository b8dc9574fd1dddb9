"""Parts of a run with a host task: task, sampler, episode runner and rollout."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from envs.tasks import make_task
from envs.tasks.data import fingerprint_of
from envs.tasks.task import Task
from envs.tasks.workflow.draw import draw
from marl_jax.agents.answers import free_text
from marl_jax.agents.seating import Seating, seat_names
from marl_jax.agents.team import Team
from marl_jax.agents.team_sampler import TeamSampler, local_mesh
from marl_jax.algorithms import ALGORITHMS
from marl_jax.devices import mesh as meshes
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import ConfigError, RunError, not_divisible
from marl_jax.rollouts.base import Rollout, RunParts, TaskParts
from marl_jax.rollouts.host.collate import place
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import EpisodeRunner
from marl_jax.rollouts.host.rollout import TurnSchedule
from marl_jax.running import processes
from marl_jax.samples import Samples
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import batches
from marl_jax.serving.remote import is_endpoint, is_remote
from marl_jax.serving.remote_models import FOLDER as REMOTE
from marl_jax.serving.remote_models import RemoteModels, RemoteSettings
from marl_jax.serving.remote_speaker import remote_speaker
from marl_jax.serving.sessions.episodes import episode_server
from marl_jax.setup.judges import check_reward_server, make_referee
from marl_jax.setup.parts import Find, Setup, make_backbones
from models.config import ModelConfig
from models.tokenizers import Tokenizer

JOURNAL = "journal"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TaskSetup(Setup):
    """Parts of a run with a host task."""

    task: Task

    host = True

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return tuple(self.task.roles)

    @functools.cached_property
    def evaluated_task(self) -> Task:
        """Task for evaluations."""
        return self.task.for_evaluation()

    @property
    def drawing(self) -> str:
        """SVG of the workflow if it has several turns, or ""."""
        workflow = self.task.graph
        return draw(workflow) if workflow is not None and len(workflow.steps) > 1 else ""

    @property
    def process(self) -> tuple[int, int]:
        """Index of this process and number of processes."""
        return jax.process_index(), jax.process_count()

    @functools.cached_property
    def sampler(self) -> TeamSampler:
        """Sampler of this process."""
        c = self.config
        return TeamSampler(
            self.team,
            self.sample_mesh,
            programs=self.programs,
            rows=c.task.max_num_seqs,
            max_length=c.task.max_length,
            in_flight_updates=c.rollout.in_flight_updates,
            fixed_shapes=_fixed_shapes(c),
            memory_frac=c.sampling.memory_frac,
            page_size=c.sampling.page_size,
        )

    @functools.cached_property
    def remote_models(self) -> RemoteModels:
        """Remote models of the run, with their limits."""
        folder = None if self.workdir is None else self.workdir / REMOTE
        return RemoteModels(RemoteSettings.from_config(self.config.remote), folder, self.process)

    @functools.cached_property
    def players(self) -> Seating:
        """Seating by the numbers of speakers: those of policies, then those of remote models."""
        names = [*self.team.policies, *self.places]
        rows = seat_names(self.config.agents, self.task.roles)
        return Seating(tuple(tuple(names.index(name) for name in row) for row in rows))

    @functools.cached_property
    def places(self) -> tuple[str, ...]:
        """Remote models among the agents."""
        return tuple(dict.fromkeys(filter(is_remote, self.config.agents.values())))

    def check_remote(self) -> None:
        """Check that remote agents and the judge can be used; call before compilation."""
        c = self.config
        used = {f"config.agents.{agent}": player for agent, player in c.agents.items() if is_remote(player)}
        used |= {"config.judge.name": c.judge.name} if is_endpoint(c.judge.name) else {}
        self.remote_models.check(used)
        if is_remote(c.judge.name) and not is_endpoint(c.judge.name):
            check_reward_server(c)

    @property
    def parts(self) -> RunParts:
        """Parts that the algorithm builds its rollout from."""
        tokenizers = [backbone.tokenizer for backbone in self.backbones]
        task = TaskParts(self._rollout_arguments, self.process, self.place, tokenizers)
        return RunParts(self.config, self.algo, self.mesh, self.workdir, task=task)

    @property
    def rollout(self) -> Rollout:
        """Source of the training samples."""
        return self.algorithm.rollout(self.parts)

    def close(self) -> None:
        """Stop the sampler if it has been started."""
        if "sampler" in vars(self):
            self.sampler.close()

    @property
    def place(self) -> Callable[[Samples], Samples]:
        """Function that places the samples of this process on the mesh."""
        return functools.partial(place, self.mesh)

    def speakers(self, temperature: float) -> list[Speaker]:
        """Return a speaker for each policy, in order, then for each remote model."""
        c, speakers = self.config.task, []
        for number, name in enumerate(self.team.policies):
            backbone = next(b for b in self.backbones if name in b.policies)
            sampling = Sampling(temperature, max_new_tokens=c.max_new_tokens)
            learner = number if self.learns[number] else -1
            speakers.append(
                Speaker(
                    self.sampler, backbone.tokenizer, sampling, c.max_length, number, backbone.name, learner,
                    tool_format=c.tool_format,
                )
            )  # fmt: skip
        sampling = Sampling(temperature, max_new_tokens=c.max_new_tokens)
        return speakers + [remote_speaker(place, sampling, self.remote_models) for place in self.places]

    def runner(
        self, temperature: float, seed: int, candidates: int = 1, task: Task | None = None, **changes: Any
    ) -> EpisodeRunner:
        """Build a runner for episodes of the task.

        Args:
            temperature: Sampling temperature.
            seed: Random seed.
            candidates: Number of completions per turn.
            task: Another variant of the task, such as `evaluated_task`.
            **changes: Other arguments of `EpisodeRunner`, such as `speakers`.
        """
        c, task = self.config.task, task or self.task
        if candidates > 1 and not task.forks:
            raise ConfigError(
                [
                    f"config.algo.name is {self.config.algo.name!r}, but must compare complete episodes, such as grpo: "
                    "the tools of the task cannot be forked for several candidates"
                ]
            )
        try:
            task.prepare()
        except RuntimeError as error:
            raise RunError(f"the task {c.name} cannot run on this machine: {error}") from error
        settings: dict[str, Any] = dict(
            speakers=self.speakers(temperature),
            seating=self.players.resized(len(task.roles)).policy_at,
            seed=seed,
            candidates=candidates,
            time_limit=c.time_limit,
            compile_seconds=lambda: self.sampler.compile_seconds,
            server=episode_server if task.serves else None,
            concurrency=task.concurrency,
        )
        return EpisodeRunner(task, **settings | changes)

    def _rollout_arguments(self, samples: int = 1, candidates: int = 1) -> dict[str, Any]:
        """Return the arguments of `HostRollout`.

        Args:
            samples: Number of episodes per example.
            candidates: Number of completions per turn.
        """
        c, count = self.config, jax.process_count()
        if c.task.n_episodes % (samples * count):
            what = f"episodes per example x processes = {samples * count}"
            raise ConfigError([not_divisible("task.n_episodes", c.task.n_episodes, samples * count, what)])
        parts = batches.parts(c) * meshes.batch_shards(self.mesh)
        named = dict(zip(self.team.policies, self.speakers(c.rollout.temperature), strict=False))
        judge = make_referee(c, self.remote_models, named)
        used = self.places or is_endpoint(c.judge.name)
        return dict(
            runner=self.runner(c.rollout.temperature, c.seed, candidates, judge=judge),
            remote_totals=(lambda: self.remote_models.totals) if used else dict,
            n_examples=c.task.n_episodes // samples,
            samples=samples,
            split=c.task.split,
            reward_levels={level: c.reward[level] for level in ("team", "agent", "process")},
            schedule=TurnSchedule(
                self.algo.train_turns, self.algo.turn_block, self._learning_seats, self.algo.seat_block
            ),
            journal=None if self.workdir is None else self.workdir / JOURNAL,
            process=self.process,
            gather=processes.gather,
            publish=self.sampler.publish,
            place=self.place,
            row_multiple=parts // count,
        )

    @property
    def _learning_seats(self) -> tuple[int, ...]:
        """Seats with a policy that is not frozen.

        Raises:
            ConfigError: There are blocks of seats, but fewer than two seats learn.
        """
        players = [self.seating.policies(seat) for seat in range(len(self.task.roles))]
        seats = tuple(seat for seat, some in enumerate(players) if any(self.learns[policy] for policy in some))
        if self.algo.seat_block and len(seats) < 2:
            learning = ", ".join(self.task.roles[seat] for seat in seats) or "none"
            raise ConfigError(
                [
                    f"config.algo.seat_block is {self.algo.seat_block}, but must be 0 unless at least two seats of the "
                    f"task learn; these do: {learning}"
                ]
            )
        return seats

    def environment(self) -> dict[str, Any]:
        """Return the settings that must match to resume from a checkpoint."""
        c = self.config.task
        known = {name: c[name] for name in ("name", "split", "n_episodes")}
        return {"task": known | {"params": c.params.to_dict(), "data": self.data}}

    @functools.cached_property
    def data(self) -> str:
        """Number and hash of the training examples."""
        part = self.config.task.split
        examples = self.task.examples(part)
        return f"{len(examples)} examples of {part}, sha256 {fingerprint_of(examples)[:16] or 'unknown'}"


def make(
    config: ConfigDict,
    devices: Sequence[jax.Device] | None,  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX
    find: Find,
    workdir: Path | None,
    programs: SharedPrograms,
) -> TaskSetup:
    """Build the parts of a run with a task; see `setup.make` for the arguments."""
    mesh = meshes.make(config, devices)
    _check_sizes(config, mesh)
    algorithm = ALGORITHMS.get(config.algo.name)
    policies = tuple(config.policies)
    task = make_task(config.task.name, **config.task.params.to_dict())
    if not isinstance(task, Task):
        raise ConfigError(
            [f"config.task.name is {config.task.name!r}, but its class must be a subclass of envs.tasks.task.Task"]
        )

    def environment(cfg: ModelConfig, tokenizer: Tokenizer):
        if config.task.max_length > cfg.max_positions:
            raise ConfigError(
                [
                    f"config.task.max_length is {config.task.max_length}, but the model supports at most "
                    f"{cfg.max_positions} positions"
                ]
            )
        return None, dict(answers=free_text(tuple(tokenizer.stop_ids), config.task.max_new_tokens), on_host=True)

    team = Team(make_backbones(config, algorithm, mesh, find, environment, workdir, programs), policies)
    names = seat_names(config.agents, task.roles)
    seating = Seating(tuple(tuple(-1 if is_remote(name) else policies.index(name) for name in row) for row in names))
    _check_tokenizers(team, seating, task.roles)
    _check_served(task, seating)
    return TaskSetup(config, mesh, team, seating, algorithm, workdir, programs, task=task)


def _fixed_shapes(config: ConfigDict) -> bool:
    """Return `sampling.fixed_shapes`; "auto" makes resuming exact on CPUs only."""
    if config.sampling.fixed_shapes != "auto":
        return config.sampling.fixed_shapes == "true"
    return jax.default_backend() == "cpu" and not config.rollout.in_flight_updates


def _check_sizes(config: ConfigDict, mesh) -> None:
    """Check that batches divide among processes and devices."""
    count, num_shards = jax.process_count(), meshes.batch_shards(mesh)
    local = local_mesh(meshes.for_sampling(mesh, config.mesh.sampling))
    parts = 1 if local is None else meshes.batch_shards(local)
    problems = []
    if config.task.max_num_seqs % parts:
        problems.append(not_divisible("task.max_num_seqs", config.task.max_num_seqs, parts, "the sampling shards"))
    if num_shards % count:
        problems.append(f"config.mesh has {num_shards} batch shards, but must have a multiple of the {count} processes")
    if problems:
        raise ConfigError(problems)


def _check_tokenizers(team: Team, seating: Seating, roles: Sequence[str]) -> None:
    """Check that policies that share a seat, and so a conversation, have the same tokenizer."""
    for seat, role in enumerate(roles):
        backbones = [team.backbones[int(team.backbone_of(policy))] for policy in seating.policies(seat)]
        if len({backbone.tokenizer.fingerprint for backbone in backbones}) > 1:
            names = ", ".join(backbone.config.name for backbone in backbones)
            raise ConfigError(
                [f"config.agents assigns {role} to models with different tokenizers ({names}), but they must be equal"]
            )


def _check_served(task: Task, seating: Seating) -> None:
    """Check that each role that is served under its name has one policy."""
    for seat, role in enumerate(task.roles):
        if task.serves and len(seating.policies(seat)) > 1:
            raise ConfigError(
                [f"config.agents assigns {role} to several policies, but must assign it to one for this task"]
            )
