"""Warm starts: the weights of another run as those that a run begins with (`model.init_from`).

From a run that trained all weights come all weights; LoRA adapters may be put on them here. From a run that trained
adapters come its base and its adapters, and the reference of a KL is then that run's policy, not the bare base.

Weights that are only read are fetched again from there whenever a run continues, so a checkpoint remembers which they
were (`Start.identity`), and another checkpoint in the same folder is not taken for it. A run that trains all weights
has them in its own checkpoints, and continues where that folder is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.team import Backbone
from marl_jax.errors import CheckpointError, RunError
from marl_jax.fields import STEP
from marl_jax.running import checksums as seals
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.schema import saved, stages
from models.sharding import param_shardings


@dataclasses.dataclass(frozen=True)
class Start:
    """One model in a checkpoint of another run.

    folder, step  of the run and the checkpoint
    name          of the model there
    model         what that run noted about it: {"model", "shape", "lora", "policies", …}
    number        its place among that run's models
    resumed       whether the run that starts here has checkpoints of its own
    """

    folder: Path
    step: int
    name: str
    model: dict[str, Any]
    number: int = 0
    resumed: bool = False

    @property
    def lora(self) -> bool:
        """Whether adapters were trained there."""
        return bool(self.model["lora"])

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these weights from others, wherever the folder lies."""
        return {"step": self.step, "model": self.name, "seal": _fingerprint(self.folder, self.step)}

    def config(self) -> ConfigDict:
        """The config of that run."""
        return stages.started(saved.read(self.folder), self.folder)

    def restore(self, like: dict) -> dict:
        """The entries of `like` ({"model"} or {"adapters"}, abstract) from the checkpoint."""
        checkpoints = Checkpoints(self.folder, read_only=True)
        try:
            restored = checkpoints.restore({"trained": {self.name: like}}, step=self.step, partial=True)
            assert restored is not None
            return restored.state["trained"][self.name]
        finally:
            checkpoints.close()

    def params(self, backbone: Backbone) -> dict:
        """The model's parameters as that run has them, in the dtype and on the mesh of `backbone`."""
        there = self.config()
        chosen = there.policies[self.model["policies"][0]].get("model") or there.model
        dtype = backbone.config.param_dtype
        if self.lora:
            base = dataclasses.replace(
                backbone,
                config=chosen,
                source=find(chosen.init_from, self.name, self.folder),
                place=None if chosen.weights == "random" else backbone.place,
                number=self.number,
                seed=there.seed,
            )
            return _cast(base.params(base.keys()[0]), dtype)
        stored = _placed(backbone, backbone.model.axes(), backbone.model.abstract(jnp.dtype(chosen.param_dtype)))
        return _cast(self.restore({"model": stored})["model"], dtype)

    def adapters(self, backbone: Backbone) -> dict | None:
        """The adapters that run trained, None if it trained all weights; one there is the start of all here."""
        if not self.lora:
            return None
        wanted = backbone.abstract()[0]["adapters"]
        n = len(self.model["policies"])
        stored = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], n, *x.shape[2:]), x.dtype), wanted)
        found = self.restore({"adapters": _placed(backbone, backbone.policy.axes()[0]["adapters"], stored)})["adapters"]
        repeat = lambda x, like: jnp.repeat(x, like.shape[1] // n, axis=1)  # noqa: E731
        return jax.device_put(jax.tree.map(repeat, found, wanted), jax.tree.map(lambda x: x.sharding, wanted))


@dataclasses.dataclass(frozen=True)
class MissingWeights:
    """The start of a run that has checkpoints of its own, where it can no longer be read.

    identity  as the checkpoints have it
    problem   why it cannot be read
    """

    identity: dict[str, Any]
    problem: str
    lora = False
    resumed = True

    def refuse(self, backbone: Backbone) -> NoReturn:
        """Raises `RunError`, which says what the start is needed for."""
        if backbone.policy.lora is not None:
            why = "the base of adapters is in no checkpoint"
        elif not any(backbone.learns):
            why = "a model that does not learn is in no checkpoint"
        elif backbone.reference:
            why = "the reference of config.algo.kl_coef is in no checkpoint"
        else:
            why = "the weights at the start are in no checkpoint"
        raise RunError(f"{self.problem}; it is needed, because {why}")

    def params(self, backbone: Backbone) -> dict:
        """Refused."""
        self.refuse(backbone)

    def adapters(self, backbone: Backbone) -> None:
        """None are known."""


def find(place: str, name: str, workdir: Path | None = None) -> Start | MissingWeights | None:
    """The model that a run named `name` here starts from; None where `place` ("", FOLDER or FOLDER@STEP) is empty.

    It is the one of the same name there, or the only one.

    workdir  of the run that starts from it: one with checkpoints continues with the start that it had
    """
    if not place:
        return None
    noted = _noted(workdir, name)
    try:
        return dataclasses.replace(_found(place, name, noted), resumed=bool(noted))
    except RunError as error:
        if not noted:
            raise
        return MissingWeights(noted, str(error))


def _noted(workdir: Path | None, name: str) -> dict[str, Any]:
    """What the newest checkpoint in a folder has as the start of a model; nothing without one."""
    if workdir is None or not stages.has_begun(workdir):
        return {}
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        if checkpoints.latest is None:
            return {}
        models = checkpoints.meta(checkpoints.latest).get("run", {}).get("models", {})
        return models.get(name, {}).get("init_from", {})


def _fingerprint(folder: Path, step: int) -> str:
    """What tells a checkpoint from others, wherever it lies; "" where there is none."""
    try:
        seal = (folder / "checkpoints" / str(step) / seals.NAME).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(seal).hexdigest()[:16]


def _found(place: str, name: str, noted: dict[str, Any]) -> Start:
    """As `find`; of a folder that has gone on, the checkpoint that is `noted`."""
    folder, _, step = place.partition("@")
    if step and not STEP.holds(step):
        raise RunError(f"config.model.init_from is {place!r}, but must be FOLDER, or FOLDER@STEP with {STEP.accepted}")
    path = Path(folder).expanduser().absolute()
    if not (path / "checkpoints").is_dir():
        raise RunError(f"config.model.init_from is {place!r}, and {path} has no checkpoints")
    checkpoints = Checkpoints(path, read_only=True)
    try:
        number = _number(checkpoints, path, step or "newest", noted)
        run = checkpoints.meta(number).get("run", {})
    except CheckpointError as error:
        raise RunError(f"config.model.init_from is {place!r}: {error}") from error
    finally:
        checkpoints.close()
    models = run.get("models", {})
    found = name if name in models else next(iter(models)) if len(models) == 1 else None
    if found is None:
        raise RunError(
            f"config.model.init_from is {place!r}, whose models are {', '.join(models)}; none is for {name!r}"
        )
    return Start(path, number, found, models[found], list(models).index(found))


def _number(checkpoints: Checkpoints, folder: Path, step: str, noted: dict[str, Any]) -> int:
    """The step that is meant: the one that is noted where it is still there, else the newest whole one, or as named."""
    if not step.isdecimal() and noted and _fingerprint(folder, noted["step"]) == noted["seal"]:
        return noted["step"]
    whole = checkpoints.newest_whole() if step == "newest" else None
    return checkpoints.named(step) if whole is None else whole


def check(start: Start, model: str, shape: dict, lora: dict, policies: tuple[str, ...]) -> None:
    """Raises `RunError` unless that run's weights fit a model of this name, shape, LoRA settings and policies."""
    wanted = {"model": model, "shape": shape}
    if start.lora:  # adapters are taken as they are, one there for all here; without any, they start from nothing
        wanted |= {
            "lora": lora,
            "policies": list(policies) if len(start.model["policies"]) > 1 else start.model["policies"],
        }
    wanted = json.loads(json.dumps(wanted))
    if not start.model["learns"]:
        raise RunError(
            f"config.model.init_from: {start.name} did not learn in {start.folder}; take what it started from"
        )
    wrong = [f"{k} is {start.model[k]!r} there and {v!r} here" for k, v in wanted.items() if start.model[k] != v]
    if wrong:
        raise RunError(f"config.model.init_from: {start.folder}@{start.step} does not fit: {'; '.join(wrong)}")


def _placed(backbone: Backbone, axes: dict, shapes: dict) -> dict:
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    return jax.tree.map(placed, shapes, param_shardings(backbone.mesh, axes, shapes))


def _cast(tree: dict, dtype: str) -> dict:
    return jax.tree.map(lambda x: x.astype(dtype), tree)
