"""Models of `--mode=serve`: runs, registered models, folders, files and adapters.

    NAME=runs/mine                run at its newest checkpoint, or runs/mine@best, runs/mine@200; a run with several
                                  policies is served as NAME/POLICY
    NAME=qwen2.5-0.5b-instruct    registered model, downloaded if necessary
    NAME=FOLDER, NAME=FILE.gguf   Hugging Face folder or GGUF file
    NAME=MODEL+FOLDER             PEFT adapter on one of these; adapters on one model share its weights
    NAME=random:tiny              registered model with random weights, for tests

Without `NAME=`, the name is the last part of the path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.agents.team_sampler import TeamSampler, local_mesh
from marl_jax.devices import mesh as meshes
from marl_jax.errors import ConfigError, RunError
from marl_jax.fields import STEP
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import run_fields, saved
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.setup import Setup
from marl_jax.setup.weights import present_weights, restore_weights, untuned_weights
from models import lora, peft
from models import registry as models
from models.config import ModelConfig
from models.model import build
from models.sharding import param_shardings
from models.tokenizers import Tokenizer
from models.weights.load import load
from registries import load_plugins

log = logging.getLogger(__name__)

RANDOM = "random:"


@dataclasses.dataclass(eq=False)
class ModelSource:
    """Models that share a sampler.

    Attributes:
        sampler: Generates the completions.
        models: Models by name.
        reload: Loads another checkpoint ("newest", "best" or a number) and returns its step; None without a run.
        run: The run that the models are policies of, if any.
    """

    sampler: BatcherThread
    models: dict[str, ServedModel]
    reload: Callable[[str], int] | None = None
    run: ServedRun | None = None


@dataclasses.dataclass(eq=False)
class ServedRun:
    """A served run.

    Attributes:
        setup: Parts of the run.
        workdir: Folder of the run.
        step: Step of the weights that are served.
    """

    setup: Setup
    workdir: Path
    step: int

    def weights(self) -> dict[str, dict]:
        """Load the weights of the served step again; the sampler has them in another layout."""
        with jax.set_mesh(self.setup.mesh):
            if (self.workdir / "checkpoints").is_dir():
                return restore_weights(self.setup, self.workdir, str(self.step))[1]
            return untuned_weights(self.setup)


@dataclasses.dataclass(frozen=True)
class ModelPlace:
    """An entry of `serve.models`.

    Attributes:
        name: Name of the served model.
        base: Run, registered model, folder or file.
        adapter: Folder of a PEFT adapter, or "".
    """

    name: str
    base: str
    adapter: str

    @classmethod
    def parse(cls, entry: str) -> ModelPlace:
        """Parse an entry of `serve.models`."""
        name, equals, place = entry.rpartition("=")
        base, _, adapter = place.partition("+")
        name = name if equals else Path(adapter or base.removeprefix(RANDOM)).name.partition("@")[0]
        if not name or not base:
            raise ConfigError([f"config.serve.models has {entry!r}, but must be PLACE or NAME=PLACE"])
        return cls(name, base, adapter)

    @property
    def folder(self) -> Path:
        """Path of the base, without a step."""
        return Path(self.base.partition("@")[0]).expanduser()

    @property
    def is_run(self) -> bool:
        """Whether the base is the folder of a run; model folders have a config.json too."""
        try:
            return "algo" in json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, RecursionError):
            return False


def load_models(config: ConfigDict, workdir: Path) -> list[ModelSource]:
    """Load the models of `serve.models`, or by default the policies of this run."""
    if not config.serve.models:
        return [_own_run(config, workdir)]
    places = [ModelPlace.parse(entry) for entry in config.serve.models]
    names = [place.name for place in places]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            [f"config.serve.models has {', '.join(twice)} twice; give each a different name with NAME=PLACE"]
        )
    runs = [place for place in places if place.is_run]
    plain: dict[str, list[ModelPlace]] = {}
    for place in places:
        if place not in runs:
            plain.setdefault(place.base, []).append(place)
    share = config.sampling.memory_frac / (len(runs) + len(plain))
    sources: list[ModelSource] = []
    try:
        for place in runs:
            sources.append(_other_run(place, config, share))
        for base, several in plain.items():
            sources.append(_plain(base, several, config, share))
    except BaseException:
        close_all(sources)
        raise
    return sources


def load_place(place: ModelPlace, config: ConfigDict, step: str = "newest") -> ModelSource:
    """Load one run or model.

    Args:
        place: The run or model.
        config: Config with the settings of the server, sampler and mesh.
        step: Checkpoint of a run: "newest", "best" or a number.
    """
    if place.is_run:
        return _other_run(dataclasses.replace(place, base=f"{place.base}@{step}"), config, config.sampling.memory_frac)
    return _plain(place.base, [place], config, config.sampling.memory_frac)


def close_all(sources: Sequence[ModelSource]) -> None:
    """Stop the samplers."""
    for source in sources:
        source.sampler.close()


# ------------------------------------------------------------------------------------------------------------- runs


def _own_run(config: ConfigDict, workdir: Path) -> ModelSource:
    setup = setups.make(config, workdir=workdir)
    with jax.set_mesh(setup.mesh):
        step, weights = present_weights(setup, workdir)
    names = setup.team.policies if len(setup.team.policies) > 1 else (setup.backbones[0].config.name,)
    return _served_run(setup, names, config, config.sampling.memory_frac, workdir, step, weights)


def _other_run(place: ModelPlace, config: ConfigDict, share: float) -> ModelSource:
    step = place.base.partition("@")[2] or "newest"
    if not STEP.holds(step):
        raise ConfigError([f"config.serve.models has {place.base!r}, but its step must be {STEP.accepted}"])
    other = saved.read(place.folder).unlock()
    load_plugins(other.plugins)
    other.mesh, other.distributed = config.mesh, config.distributed
    setup = setups.make(other, workdir=place.folder)
    with jax.set_mesh(setup.mesh):
        if (place.folder / "checkpoints").is_dir():
            number, weights = restore_weights(setup, place.folder, step)
        else:
            number, weights = 0, untuned_weights(setup)
    policies = setup.team.policies
    names = [f"{place.name}/{policy}" for policy in policies] if len(policies) > 1 else [place.name]
    return _served_run(setup, names, config, share, place.folder, number, weights)


def _served_run(
    setup: Setup, names: Sequence[str], config: ConfigDict, share: float, workdir: Path, step: int, weights: dict
) -> ModelSource:
    limit = min([config.serve.max_length, *(backbone.model.cfg.max_positions for backbone in setup.backbones)])
    sampler = TeamSampler(setup.team, setup.sample_mesh, **_settings(config, limit, share))
    sampler.publish(weights, step)
    run = ServedRun(setup, workdir, step)

    def reload(wanted: str) -> int:
        if not STEP.holds(wanted):
            raise RunError(f"step is {wanted!r}, but must be {STEP.accepted}")
        with jax.set_mesh(setup.mesh):
            number, new = restore_weights(setup, workdir, wanted)
            sampler.publish(new, number)
        run.step = number
        return number

    def tokenizer_of(policy: int) -> tuple[Tokenizer, ModelConfig]:
        backbone = setup.backbones[int(setup.team.backbone_of(policy))]
        return backbone.tokenizer, backbone.model.cfg

    served = {
        name: _served(name, sampler, *tokenizer_of(policy), config, limit, policy) for policy, name in enumerate(names)
    }
    return ModelSource(sampler, served, reload, run)


def _settings(config: ConfigDict, limit: int, share: float) -> dict[str, Any]:
    return dict(
        rows=config.serve.max_num_seqs, max_length=limit, in_flight_updates=config.rollout.in_flight_updates,
        memory_frac=share, page_size=config.sampling.page_size,
    )  # fmt: skip


def _served(
    name: str, sampler: Any, tokenizer: Tokenizer, cfg: ModelConfig, config: ConfigDict, limit: int, policy: int
) -> ServedModel:
    sampling = Sampling(max_new_tokens=config.serve.max_new_tokens)
    speaker = Speaker(sampler, tokenizer, sampling, limit, policy, number=-1)
    return ServedModel.of(name, speaker, cfg.vocab_size, cfg.vision)


# ----------------------------------------------------------------------------------------------------- plain models


def _plain(base: str, places: Sequence[ModelPlace], config: ConfigDict, share: float) -> ModelSource:
    """Load a model that is not from a run, and its adapters."""
    chosen = _model_fields(base, config)
    cfg, weights, tokenizer = setups.found(chosen)
    mesh = local_mesh(meshes.for_sampling(meshes.make(config), config.mesh.sampling))
    model, dtype = build(cfg), jnp.dtype(chosen.dtype)
    more = _adapters(places, cfg)
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        params = _params(model, weights, dtype, mesh, config.seed)
        engine = Engine(model, params, dtype=dtype, mesh=mesh, **more)
        del params
        limit = min(config.serve.max_length, cfg.max_positions)
        try:
            batcher = Batcher(engine, tokenizer=tokenizer, **_settings(config, limit, share))
        except ValueError as error:
            raise RunError(f"cannot create the sampler of {base}: {error}") from error
        if jax.default_backend() != "cpu":
            batcher.compile()
        sampler = BatcherThread(batcher)
    numbers = range(len(places)) if more else [0] * len(places)
    return ModelSource(sampler, {
        place.name: _served(place.name, sampler, tokenizer, cfg, config, limit, policy)
        for place, policy in zip(places, numbers, strict=True)
    })  # fmt: skip


def _model_fields(base: str, config: ConfigDict) -> ConfigDict:
    """Return the config of a model, with the dtype of the run."""
    name = base.removeprefix(RANDOM)
    registered = name.lower() in models.names() or name.lower() in models.ALIASES
    if registered:
        return run_fields.group("model", name=name, weights="random" if base != name else "", dtype=config.model.dtype)
    if base != name or not Path(name).expanduser().exists():
        near = ", ".join(models.names()[:4])
        accepted = f"the folder of a run or model, a GGUF file, or a registered model such as {near}"
        raise ConfigError([f"config.serve.models has {base!r}, but must be {accepted}"])
    return run_fields.group("model", weights=str(Path(name).expanduser()), dtype=config.model.dtype)


def _params(model, place: str | None, dtype, mesh: Mesh | None, seed: int) -> dict:
    """Load or initialize the parameters in the dtype of the computation."""
    shardings = None if mesh is None else param_shardings(mesh, model.axes(), model.abstract(dtype))
    if place is not None:
        return load(place, model.cfg, dtype, shardings)[1]
    return jax.jit(lambda key: model.init(key, dtype), out_shardings=shardings)(jax.random.key(seed))


def _adapters(places: Sequence[ModelPlace], cfg: ModelConfig) -> dict[str, Any]:
    """Stack the adapters, with zeros for entries without one; {} if no entry has one."""
    loaded = [peft.load(place.adapter, cfg) if place.adapter else None for place in places]
    ranks = [ab["a"].shape[-1] for one in loaded if one is not None for ab in one.weights.values()]
    if not ranks:
        return {}
    targets = [t for t in lora.TARGETS if any(one is not None and t in one.weights for one in loaded)]
    stack = lora.init(cfg, jax.random.key(0), len(loaded), max(ranks), targets)
    stack, scale = jax.tree.map(jnp.zeros_like, stack), jnp.zeros((len(loaded),), jnp.float32)
    for i, one in enumerate(loaded):
        if one is not None:
            stack, scale = peft.put(stack, scale, i, one)
    return dict(adapters=stack, lora_scale=scale)
