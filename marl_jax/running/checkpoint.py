"""Checkpoints with Orbax: saved in the background, sealed with checksums, the newest whole one restored.

    checkpoints/<step>/state/      the arrays
    checkpoints/<step>/meta/       JSON: format, what the run must agree with, whatever else the loop wants back
    checkpoints/<step>/seal.json   size and checksum of every file, written before the folder gets its name

Orbax commits a checkpoint by renaming its folder, so a crash leaves no half-written one behind; the seal finds files
that were cut or changed afterwards, which Orbax itself would partly read without a word.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as preserve

from marl_jax.errors import CheckpointError
from marl_jax.running import checksums as seals
from marl_jax.running import processes

log = logging.getLogger(__name__)

FORMAT = 5
"""Raised when what a state holds changes, so that an older run is refused by name rather than misread."""

METRIC = "metric"
OVERHEAD = 500_000  # bytes: a save that runs out of room half-way is noisy, and TensorStore prints what it likes
FILES = 100  # that a save makes at most on the way


class Restored(NamedTuple):
    """What `restore` found."""

    step: int
    state: Any
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    Every process of a run makes the same calls. `keep` newest ones stay, and the one with the best metric.
    """

    def __init__(
        self, workdir: Path, *, keep: int = 2, every: int = 1, best_mode: str = "max", read_only: bool = False
    ):
        self._folder = Path(workdir).absolute() / "checkpoints"
        self._every, self._read_only, self._sign = every, read_only, -1.0 if best_mode == "min" else 1.0
        self._pending: int | None = None
        self.durable = 0  # the newest step that is known to be on the disk
        if not read_only:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._clean()
        # Orbax reads the small files of every checkpoint when it starts, and one that it cannot read would stop it.
        steps = ocp.path.step.standard_name_format()
        self._unreadable = {int(path.name): reason for path, reason in _unreadable(self._folder, steps)}
        best = preserve.BestN(
            get_metric_fn=lambda metrics: metrics[METRIC],
            reverse=best_mode == "min",
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        self._manager = ocp.CheckpointManager(
            self._folder,
            item_handlers={"state": ocp.PyTreeCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()},
            options=ocp.CheckpointManagerOptions(
                preservation_policy=preserve.AnyPreservationPolicy([preserve.LatestN(keep), best]),
                async_options=None if read_only else ocp.AsyncOptions(post_finalization_callback=self._seal),
                enable_async_checkpointing=not read_only,
                best_fn=lambda metrics: metrics[METRIC],
                best_mode=best_mode,
                create=False,
                read_only=read_only,
                step_name_format=_Readable(steps, self._unreadable),
            ),
        )

    def due(self, step: int) -> bool:
        """Whether a checkpoint belongs at this step."""
        return step % self._every == 0

    def improves(self, metric: float | None) -> bool:
        """Whether a metric is better than that of every checkpoint, so that its step deserves one of its own."""
        if metric is None or not math.isfinite(metric):
            return False
        self._settle()
        stored = None if self.best is None else self._manager.metrics(self.best)
        return processes.anyone(stored is None or self._sign * metric > self._sign * stored[METRIC])

    def save(self, step: int, state: Any, meta: Mapping[str, Any], metric: float | None = None) -> bool:
        """Saves in the background; False, with a warning, when the disk has no room (the run continues).

        `state` is copied before the call returns, so it may be donated right after. `meta` is JSON; its entry "run"
        is what a later run must agree with. `metric` is the figure by which the best is kept.
        """
        self._settle()
        if step in self._manager.all_steps():
            return True
        if not self._room_for(state):
            return False
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(jax.tree.map(_key_to_data, state)),
            meta=ocp.args.JsonSave({"format": FORMAT, "step": step, **meta}),
        )
        self._pending = step
        try:
            metrics = {METRIC: float(metric)} if metric is not None and math.isfinite(metric) else None
            return self._manager.save(step, args=arguments, metrics=metrics, force=True)
        except (OSError, ValueError) as error:
            self._failed(error)
            return False

    def wait(self) -> None:
        """Blocks until what was saved is on the disk."""
        self._settle()

    def finish(self, step: int) -> None:
        """Waits, and raises `CheckpointError` unless `step` is on the disk: the end of a run must not be lost."""
        self._settle()
        if step not in self._manager.all_steps():
            newest = self.latest
            has = "no checkpoint is there" if newest is None else f"the newest there is step {newest}"
            message = f"step {step} could not be saved and {has}; make room and start again"
            raise CheckpointError(f"{self._folder}: {message}")

    def close(self) -> None:
        """Waits and lets go of the folder."""
        self._settle()
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The newest step, whole or not."""
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        self._settle()
        return sorted(self._manager.all_steps())

    @property
    def best(self) -> int | None:
        """The step with the best metric, None if no checkpoint has one."""
        return self._manager.best_step()

    def named(self, step: str) -> int:
        """The step that "newest", "best" or a number means."""
        if step.isdecimal():
            return int(step)
        if self.latest is None:
            raise CheckpointError(f"{self._folder} has no checkpoint")
        if step == "best" and self.best is None:
            raise CheckpointError(f"{self._folder} has no best checkpoint: none has a value of checkpoint.best_metric")
        return {"newest": self.latest, "best": self.best}[step]

    def meta(self, step: int) -> dict[str, Any]:
        """What was saved beside the state of a step."""
        if step not in self._manager.all_steps():
            there = ", ".join(map(str, sorted(self._manager.all_steps()))) or "none"
            raise CheckpointError(f"{self._folder} has no checkpoint of step {step}, but must be {there}")
        return self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]

    def restore(
        self, like: Any = None, *, step: int | None = None, run: Mapping[str, Any] | None = None, partial: bool = False
    ) -> Restored | None:
        """The newest whole checkpoint, or the one of `step`; None if there is none.

        like: the state to fill, of arrays or `jax.ShapeDtypeStruct` with the shardings wanted now; None restores as
            NumPy arrays in plain dictionaries.
        run: what must agree with the entry "run" of the meta; a difference raises `CheckpointError` with the fields.
        partial: `like` has only some of the entries (the parameters without the optimizer).
        """
        self._settle()
        damaged: list[int] = []
        if step is None:
            step, damaged = self._newest_whole()
        elif damage := self._damage(step):
            raise CheckpointError(f"checkpoint {self._folder / str(step)} cannot be used: {damage}")
        if step is None:
            return None
        restored = self._read(step, like, run, partial)
        for other in damaged:  # only now: with nothing whole, the next start must find them and refuse too
            self._put_aside(other)
        return restored

    def newest_whole(self) -> int | None:
        """The newest step that is not damaged, None without checkpoints; those that are passed over are logged."""
        return self._newest_whole()[0]

    # ------------------------------------------------------------------------------------------------ reading

    def _newest_whole(self) -> tuple[int | None, list[int]]:
        """The newest step that is not damaged, and the damaged ones after it."""
        steps = sorted({*self._manager.all_steps(), *self._unreadable}, reverse=True)
        if any(others != steps for others in processes.gather(steps)):
            raise CheckpointError(
                f"{self._folder}: this process finds the checkpoints {steps} and another one others; all processes "
                "need one --workdir, on a disk that they share"
            )
        for number, step in enumerate(steps):
            damage = self._damage(step)
            if damage is None:
                return step, steps[:number]
            words = "%s: checkpoint of step %d cannot be used (%s); trying the one before it"
            log.warning(words, self._folder, step, damage)
        if steps:
            raise CheckpointError(f"{self._folder}: none of the checkpoints {steps} is whole; use another folder")
        return None, []

    def _damage(self, step: int) -> str | None:
        """What is wrong with a checkpoint: every process looks at its share of the files, and all hear of it."""
        share = seals.damage(self._folder / str(step), jax.process_index(), jax.process_count())
        return processes.first(self._unreadable.get(step) or share)

    def _read(self, step: int, like: Any, run: Mapping[str, Any] | None, partial: bool) -> Restored:
        meta = self.meta(step)
        if meta.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {self._folder / str(step)} has format {meta.get('format')}, this version reads {FORMAT}; "
                "start with another --workdir, or use the version that wrote it"
            )
        if run is not None:
            differences = list(_differences(meta.get("run", {}), json.loads(json.dumps(run))))
            if differences:
                raise CheckpointError(
                    f"checkpoint {self._folder / str(step)} is of another run: {'; '.join(differences[:8])}; "
                    "start with another --workdir, or with the config of that run"
                )
        stored = self._manager.item_metadata(step)["state"].tree
        if like is None:
            plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), stored)
            arguments = ocp.args.PyTreeRestore(restore_args=plain)
            return Restored(step, self._fetch(step, arguments), meta)
        wanted = jax.tree.map(_to_struct, like)
        _check_shapes(step, stored, wanted, partial)
        arguments = ocp.args.PyTreeRestore(
            wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=partial
        )
        return Restored(step, jax.tree.map(_data_to_key, like, self._fetch(step, arguments)), meta)

    def _fetch(self, step: int, arguments: ocp.args.PyTreeRestore) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(state=arguments))["state"]

    def _put_aside(self, step: int) -> None:
        """Moves a damaged checkpoint out of the way, so that its step can be saved again; its files are kept."""
        if self._read_only:
            return
        if jax.process_index() == 0:
            aside = self._folder.with_name("damaged_checkpoints")
            aside.mkdir(exist_ok=True)
            shutil.rmtree(aside / str(step), ignore_errors=True)
            (self._folder / str(step)).rename(aside / str(step))
        self._unreadable.pop(step, None)
        processes.meet(f"checkpoint {step} is put aside")
        self._manager.reload()

    # ------------------------------------------------------------------------------------------------ writing

    def _seal(self) -> None:
        """Runs in Orbax's thread when all files are written and the folder does not yet have its final name."""
        if jax.process_index():
            return
        unnamed = self._folder.glob(f"{self._pending}.orbax-checkpoint-tmp*")
        seals.write(next(unnamed, self._folder / str(self._pending)))

    def _settle(self) -> None:
        """Waits for the save under way; a full disk is reported and forgotten, anything else is raised."""
        try:
            self._manager.wait_until_finished()
            self.durable = self._pending or self.durable
        except (OSError, ValueError) as error:
            self._failed(error)
        self._pending = None

    def _failed(self, error: Exception) -> None:
        if not _is_storage(error):
            raise error
        log.warning(
            "checkpoint of step %s could not be written (%s); the run continues, the checkpoints before it are whole",
            self._pending,
            _reason(error),
        )
        self._clean()

    def _room_for(self, state: Any) -> bool:
        """Whether the disks of all processes have room: for the state, names and indices, and for files."""
        needed = 1.05 * sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes")) + OVERHEAD
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        files = disk.f_favail if disk.f_files else FILES  # some file systems do not count them
        if not processes.anyone(needed > free or files < FILES):
            return True
        log.warning(
            "checkpoint needs %.1f MB and %d files, and %s has %.1f MB and %d files free; not saved, the run continues "
            "and tries again next time", needed / 1e6, FILES, self._folder, free / 1e6, files,
        )  # fmt: skip
        return False

    def _clean(self) -> None:
        """Removes what interrupted saves left."""
        if jax.process_index() == 0:
            for folder in self._folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(folder, ignore_errors=True)


class _Readable(ocp.path.step.NameFormat):
    """Orbax's names of step folders, without the steps that are `unreadable`."""

    def __init__(self, steps: ocp.path.step.NameFormat, unreadable: Mapping[int, str]):
        self._steps, self._unreadable = steps, unreadable

    def build_name(self, step: int) -> str:
        """The name of a step's folder."""
        return self._steps.build_name(step)

    def find_all(self, base_path: Any) -> Iterator[Any]:
        """The metadata of every step that can be read."""
        return (found for found in self._steps.find_all(base_path) if found.step not in self._unreadable)

    def find_step(self, base_path: Any, step: int) -> Any:
        """The metadata of one step."""
        return self._steps.find_step(base_path, step)


def _unreadable(folder: Path, steps: ocp.path.step.NameFormat) -> Iterator[tuple[Path, str]]:
    """Checkpoints whose small files are damaged, with the reason; the arrays are left to `restore`."""
    for path in sorted(folder.glob("*")):
        if not re.fullmatch(r"0|[1-9]\d*", path.name, re.ASCII):
            continue
        reason = seals.damage(path, leave_out="state")
        if reason is None:
            try:
                _ = steps.find_step(folder, int(path.name)).commit_timestamp
            except (
                ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError
            ) as error:  # fmt: skip
                reason = f"Orbax cannot read its metadata: {str(error).splitlines()[0][:200]}"
        if reason is not None:
            yield path, reason


def _is_storage(error: Exception) -> bool:
    # TensorStore reports the errors of the file system as ValueError, with their number in the text.
    return isinstance(error, OSError) or "os_error_code" in str(error) or "RESOURCE_EXHAUSTED" in str(error)


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number is None and (match := re.search(r"os_error_code='(\d+)'", str(error))):
        number = int(match[1])
    return "no space left on the disk" if number == errno.ENOSPC else str(error).splitlines()[0][:300]


def _differences(stored: Any, wanted: Any, name: str = "") -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted({*stored, *wanted}):
            path = f"{name}.{key}" if name else key
            yield from _differences(stored.get(key), wanted.get(key), path)
    elif stored != wanted:
        yield f"{name} is {stored!r} there and {wanted!r} here"


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _key_to_data(x: Any) -> Any:
    return jax.random.key_data(x) if _is_key(x) else x


def _data_to_key(like: Any, x: Any) -> Any:
    return jax.random.wrap_key_data(x, impl=jax.random.key_impl(jnp.empty((), like.dtype))) if _is_key(like) else x


def _to_struct(x: Any) -> Any:
    if not hasattr(x, "dtype"):
        return x
    if _is_key(x):
        data = jax.eval_shape(jax.random.key_data, x)
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=_sharding(x))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_sharding(x))


def _sharding(x: Any) -> jax.sharding.Sharding:
    return getattr(x, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _check_shapes(step: int, stored: Any, wanted: Any, partial: bool) -> None:
    """Refuses a state of other entries or shapes, with the first few that differ."""

    def shapes(tree: Any) -> dict[str, tuple]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {_path(path): (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in leaves if hasattr(leaf, "shape")}

    there, here = shapes(stored), shapes(wanted)
    problems = [f"{name} is not there" for name in here if name not in there]
    changed = [name for name in here if name in there and there[name] != here[name]]
    problems += [f"{name} is {there[name]} there and {here[name]} here" for name in changed]
    if not partial:
        problems += [f"{name} is not wanted here" for name in there if name not in here]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise CheckpointError(f"checkpoint of step {step} does not fit: {'; '.join(problems[:5])}{more}")


def _path(path: tuple) -> str:
    """One name for a leaf, whether its parents are dictionaries, tuples or named tuples."""
    return ".".join(str(next(getattr(k, kind) for kind in ("key", "name", "idx") if hasattr(k, kind))) for k in path)
