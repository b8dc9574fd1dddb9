"""Warm starts from the weights of another run (`model.init_from`).

If the other run trained all weights, they are loaded, and LoRA adapters may be added. If it trained adapters, its base
and its adapters are loaded, and the KL reference is its policy rather than the base model.

Frozen weights are not in the checkpoints of a run and are loaded from the other run again when it resumes. Checkpoints
record which ones they were (`Start.identity`), so that another checkpoint in the same folder is not used by mistake. A
run that trains all weights can resume after the other run was deleted.
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
    """A model in a checkpoint of another run.

    Attributes:
        folder: Folder of the other run.
        step: Step of the checkpoint.
        name: Name of the model in the other run.
        model: Fingerprint of the model: {"model", "shape", "lora", "policies", …}.
        number: Index of the model in the other run.
        resumed: Whether the present run already has checkpoints.
    """

    folder: Path
    step: int
    name: str
    model: dict[str, Any]
    number: int = 0
    resumed: bool = False

    @property
    def lora(self) -> bool:
        """Whether the other run trained adapters."""
        return bool(self.model["lora"])

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the weights, independent of the path of the folder."""
        return {"step": self.step, "model": self.name, "seal": _fingerprint(self.folder, self.step)}

    def config(self) -> ConfigDict:
        """Return the config of the other run."""
        return stages.started(saved.read(self.folder), self.folder)

    def restore(self, like: dict) -> dict:
        """Restore the entries of `like` ({"model": …} or {"adapters": …}, abstract) from the checkpoint."""
        checkpoints = Checkpoints(self.folder, read_only=True)
        try:
            restored = checkpoints.restore({"trained": {self.name: like}}, step=self.step, partial=True)
            assert restored is not None
            return restored.state["trained"][self.name]
        finally:
            checkpoints.close()

    def params(self, backbone: Backbone) -> dict:
        """Load the model's parameters in the dtype and on the mesh of `backbone`."""
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
        """Load the adapters, or return None if all weights were trained.

        A single adapter initializes all adapters of the present run.
        """
        if not self.lora:
            return None
        wanted = backbone.abstract()[0]["adapters"]
        n = len(self.model["policies"])
        stored = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], n, *x.shape[2:]), x.dtype), wanted)
        own = self.restore({"adapters": _placed(backbone, backbone.policy.axes()[0]["adapters"], stored)})["adapters"]
        repeat = lambda x, like: jnp.repeat(x, like.shape[1] // n, axis=1)  # noqa: E731
        return jax.device_put(jax.tree.map(repeat, own, wanted), jax.tree.map(lambda x: x.sharding, wanted))


@dataclasses.dataclass(frozen=True)
class MissingWeights:
    """Initial weights that can no longer be read, of a run that has checkpoints.

    Attributes:
        identity: Identity of the weights in the checkpoints.
        problem: Reason why they cannot be read.
    """

    identity: dict[str, Any]
    problem: str
    lora = False
    resumed = True

    def refuse(self, backbone: Backbone) -> NoReturn:
        """Raise a `RunError` that says why the initial weights are needed."""
        if backbone.policy.lora is not None:
            why = "checkpoints do not have the base of adapters"
        elif not any(backbone.learns):
            why = "checkpoints do not have frozen models"
        elif backbone.reference:
            why = "checkpoints do not have the initial policy, which the loss refers to"
        else:
            why = "checkpoints do not have the initial weights"
        raise RunError(f"{self.problem}; it is required because {why}")

    def params(self, backbone: Backbone) -> dict:
        """Raise a `RunError`."""
        self.refuse(backbone)

    def adapters(self, backbone: Backbone) -> None:
        """Return None."""


def find(place: str, name: str, workdir: Path | None = None) -> Start | MissingWeights | None:
    """Find the initial weights of a model in another run.

    They are those of the model with the same name, or of the only model.

    Args:
        place: "", FOLDER or FOLDER@STEP.
        name: Name of the model in the present run.
        workdir: Folder of the present run. If it has checkpoints, their record of the initial weights is used.

    Returns:
        None if `place` is "".
    """
    if not place:
        return None
    noted = _noted(workdir, name)
    try:
        return dataclasses.replace(_locate(place, name, noted), resumed=bool(noted))
    except RunError as error:
        if not noted:
            raise
        return MissingWeights(noted, str(error))


def _noted(workdir: Path | None, name: str) -> dict[str, Any]:
    """Return the identity of the initial weights in the newest checkpoint, or {}."""
    if workdir is None or not stages.has_begun(workdir):
        return {}
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        if checkpoints.latest is None:
            return {}
        models = checkpoints.meta(checkpoints.latest).get("run", {}).get("models", {})
        return models.get(name, {}).get("init_from", {})


def _fingerprint(folder: Path, step: int) -> str:
    """Return a checksum of a checkpoint, or "" if there is none."""
    try:
        seal = (folder / "checkpoints" / str(step) / seals.NAME).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(seal).hexdigest()[:16]


def _locate(place: str, name: str, noted: dict[str, Any]) -> Start:
    """Find the initial weights; see `find`. Prefers the checkpoint that is `noted`."""
    folder, _, step = place.partition("@")
    if step and not STEP.holds(step):
        raise RunError(f"config.model.init_from is {place!r}, but its step must be {STEP.accepted}")
    path = Path(folder).expanduser().absolute()
    if not (path / "checkpoints").is_dir():
        raise RunError(f"config.model.init_from is {place!r}, but {path} has no checkpoints")
    checkpoints = Checkpoints(path, read_only=True)
    try:
        number = _number(checkpoints, path, step or "newest", noted)
        run = checkpoints.meta(number).get("run", {})
    except CheckpointError as error:
        raise RunError(f"config.model.init_from is {place!r}: {error}") from error
    finally:
        checkpoints.close()
    models = run.get("models", {})
    model = name if name in models else next(iter(models)) if len(models) == 1 else None
    if model is None:
        raise RunError(
            f"config.model.init_from is {place!r}, but it has no model {name!r}; its models: {', '.join(models)}"
        )
    return Start(path, number, model, models[model], list(models).index(model))


def _number(checkpoints: Checkpoints, folder: Path, step: str, noted: dict[str, Any]) -> int:
    """Return the step to load: the noted one if it exists, otherwise the named one.

    For "newest", damaged checkpoints are skipped.
    """
    if not step.isdecimal() and noted and _fingerprint(folder, noted["step"]) == noted["seal"]:
        return noted["step"]
    whole = checkpoints.newest_whole() if step == "newest" else None
    return checkpoints.named(step) if whole is None else whole


def check(start: Start, model: str, shape: dict, lora: dict, policies: tuple[str, ...]) -> None:
    """Check that the weights fit a model of the present run.

    Args:
        start: Model in the other run.
        model: Name of the model.
        shape: Changes of its shape.
        lora: LoRA settings, or {}.
        policies: Names of its policies.

    Raises:
        RunError: If they do not fit.
    """
    wanted = {"model": model, "shape": shape}
    if start.lora:  # adapters are loaded as they are; a single one initializes all
        wanted |= {
            "lora": lora,
            "policies": list(policies) if len(start.model["policies"]) > 1 else start.model["policies"],
        }
    wanted = json.loads(json.dumps(wanted))
    if not start.model["learns"]:
        raise RunError(
            f"config.model.init_from: {start.name} was frozen in {start.folder}; use the weights it started from"
        )
    wrong = [f"{k} is {start.model[k]!r} there and {v!r} here" for k, v in wanted.items() if start.model[k] != v]
    if wrong:
        raise RunError(f"config.model.init_from: {start.folder}@{start.step} does not fit: {'; '.join(wrong)}")


def _placed(backbone: Backbone, axes: dict, shapes: dict) -> dict:
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    return jax.tree.map(placed, shapes, param_shardings(backbone.mesh, axes, shapes))


def _cast(tree: dict, dtype: str) -> dict:
    return jax.tree.map(lambda x: x.astype(dtype), tree)
