"""Warm starts: the weights of another run as those that a run begins with (`model.init_from`).

From a run that trained all weights come all weights; LoRA adapters may be put on them here. From a run that trained
adapters come its base and its adapters, and the reference of a KL is then that run's policy, not the bare base.

Weights that are only read are fetched again from there whenever a run continues, so a checkpoint remembers which they
were (`Start.identity`), and another checkpoint in the same folder is not taken for it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.team import Backbone
from marl_jax.config import saved, stages
from marl_jax.errors import CheckpointError, RunError
from marl_jax.fields import STEP
from marl_jax.running import checksums as seals
from marl_jax.running.checkpoint import Checkpoints
from models.sharding import param_shardings


@dataclasses.dataclass(frozen=True)
class Start:
    """One model in a checkpoint of another run.

    folder, step  of the run and the checkpoint
    name          of the model there
    model         what that run noted about it: {"model", "shape", "lora", "policies", …}
    number        its place among that run's models
    """

    folder: Path
    step: int
    name: str
    model: dict[str, Any]
    number: int = 0

    @property
    def lora(self) -> bool:
        """Whether adapters were trained there."""
        return bool(self.model["lora"])

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these weights from others, wherever the folder lies."""
        seal = (self.folder / "checkpoints" / str(self.step) / seals.NAME).read_bytes()
        return {"step": self.step, "model": self.name, "seal": hashlib.sha256(seal).hexdigest()[:16]}

    def config(self) -> ConfigDict:
        """The config of that run."""
        return stages.started(saved.read(self.folder), self.folder)

    def restore(self, like: dict) -> dict:
        """The entries of `like` ({"model"} or {"adapters"}, abstract) from the checkpoint."""
        checkpoints = Checkpoints(self.folder, read_only=True)
        try:
            restored = checkpoints.restore({"trained": {self.name: like}}, step=self.step, partial=True)
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
                source=find(chosen.init_from, self.name),
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


def find(place: str, name: str) -> Start | None:
    """The model that a run named `name` here starts from; None where `place` ("", FOLDER or FOLDER@STEP) is empty.

    It is the one of the same name there, or the only one.
    """
    if not place:
        return None
    folder, _, step = place.partition("@")
    if step and not STEP.holds(step):
        raise RunError(f"config.model.init_from is {place!r}; accepted: FOLDER, or FOLDER@STEP with {STEP.accepted}")
    path = Path(folder).expanduser().absolute()
    if not (path / "checkpoints").is_dir():
        raise RunError(f"config.model.init_from is {place!r}, and {path} has no checkpoints")
    checkpoints = Checkpoints(path, read_only=True)
    try:
        number = checkpoints.named(step or "newest")
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
