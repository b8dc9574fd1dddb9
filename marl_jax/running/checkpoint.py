"""Checkpoints with Orbax, saved in the background and verified by checksums.

    checkpoints/<step>/state/      arrays
    checkpoints/<step>/meta/       JSON: format, settings that a resumed run must match, other data of the loop
    checkpoints/<step>/seal.json   size and checksum of every file, written before the folder gets its final name

Orbax commits a checkpoint by renaming its folder, so a crash leaves no partial checkpoint. The seal detects files that
were truncated or changed later, some of which Orbax would read without an error.
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
"""Version of the state, incremented when its contents change, so that older checkpoints are rejected."""

METRIC = "metric"
OVERHEAD = 500_000  # spare bytes: TensorStore prints many errors if a save runs out of space
FILES = 100  # maximum number of files that a save creates


class Restored(NamedTuple):
    """A restored checkpoint."""

    step: int
    state: Any
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    All processes of a run must make the same calls.

    Args:
        workdir: Folder of the run.
        keep: Number of recent checkpoints to keep, in addition to the one with the best metric.
        every: Number of steps between checkpoints.
        best_mode: Whether the "max" or the "min" of the metric is best.
        read_only: Whether to only read checkpoints.
    """

    def __init__(
        self, workdir: Path, *, keep: int = 2, every: int = 1, best_mode: str = "max", read_only: bool = False
    ):
        self._folder = Path(workdir).absolute() / "checkpoints"
        self._every, self._read_only, self._sign = every, read_only, -1.0 if best_mode == "min" else 1.0
        self._pending: int | None = None
        self.durable = 0  # newest step that is known to be on disk
        if not read_only:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._clean()
        # Orbax reads the metadata of every checkpoint when it starts and fails if it cannot read one.
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
        """Return whether a checkpoint is due at this step."""
        return step % self._every == 0

    def improves(self, metric: float | None) -> bool:
        """Return whether a metric is better than that of every checkpoint."""
        if metric is None or not math.isfinite(metric):
            return False
        self._settle()
        stored = None if self.best is None else self._manager.metrics(self.best)
        return processes.anyone(stored is None or self._sign * metric > self._sign * stored[METRIC])

    def save(self, step: int, state: Any, meta: Mapping[str, Any], metric: float | None = None) -> bool:
        """Save a checkpoint in the background.

        `state` is copied before the call returns, so it may be donated afterwards.

        Args:
            step: Step of the checkpoint.
            state: Pytree of arrays.
            meta: JSON value. A later run must match its entry "run".
            metric: Value that determines the best checkpoint.

        Returns:
            False, with a warning, if the disk is full. The run can continue.
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
        """Wait until the last checkpoint is on disk."""
        self._settle()

    def finish(self, step: int) -> None:
        """Wait until the last step of a run is on disk.

        Raises:
            CheckpointError: The checkpoint of `step` could not be saved.
        """
        self._settle()
        if step not in self._manager.all_steps():
            newest = self.latest
            has = "there is no checkpoint" if newest is None else f"the newest checkpoint is of step {newest}"
            message = f"step {step} could not be saved, and {has}; free disk space and start again"
            raise CheckpointError(f"{self._folder}: {message}")

    def close(self) -> None:
        """Wait for the last checkpoint and release the folder."""
        self._settle()
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """Newest step, damaged or not."""
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        self._settle()
        return sorted(self._manager.all_steps())

    @property
    def best(self) -> int | None:
        """Step with the best metric, or None if no checkpoint has a metric."""
        return self._manager.best_step()

    def named(self, step: str) -> int:
        """Return the step of "newest", "best" or a number."""
        if step.isdecimal():
            return int(step)
        if self.latest is None:
            raise CheckpointError(f"{self._folder} has no checkpoint")
        if step == "best" and self.best is None:
            raise CheckpointError(f"{self._folder} has no best checkpoint: none has a value of checkpoint.best_metric")
        return {"newest": self.latest, "best": self.best}[step]

    def meta(self, step: int) -> dict[str, Any]:
        """Return the metadata of a checkpoint."""
        if step not in self._manager.all_steps():
            there = ", ".join(map(str, sorted(self._manager.all_steps()))) or "none"
            raise CheckpointError(f"{self._folder} has no checkpoint of step {step}; the step must be one of: {there}")
        return self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]

    def restore(
        self, like: Any = None, *, step: int | None = None, run: Mapping[str, Any] | None = None, partial: bool = False
    ) -> Restored | None:
        """Restore the newest undamaged checkpoint, or that of `step`.

        Args:
            like: State to restore into, of arrays or `jax.ShapeDtypeStruct` with the desired shardings. None restores
                NumPy arrays in dictionaries.
            step: Step to restore; None for the newest.
            run: Settings that must match the entry "run" of the metadata.
            partial: Whether `like` has only some of the entries, such as the parameters without the optimizer.

        Returns:
            The restored checkpoint, or None if there is none.

        Raises:
            CheckpointError: The checkpoint is damaged or does not match `like` or `run`.
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
        for other in damaged:  # only after success: otherwise the next start must also find and reject them
            self._put_aside(other)
        return restored

    def newest_whole(self) -> int | None:
        """Return the newest undamaged step, or None without checkpoints.

        Damaged checkpoints are logged.
        """
        return self._newest_whole()[0]

    # ------------------------------------------------------------------------------------------------ reading

    def _newest_whole(self) -> tuple[int | None, list[int]]:
        """Return the newest undamaged step, and the damaged steps after it."""
        steps = sorted({*self._manager.all_steps(), *self._unreadable}, reverse=True)
        if any(others != steps for others in processes.gather(steps)):
            raise CheckpointError(
                f"{self._folder}: this process finds the checkpoints {steps}, but another process finds others; all "
                "processes need the same --workdir on a shared disk"
            )
        for number, step in enumerate(steps):
            damage = self._damage(step)
            if damage is None:
                return step, steps[:number]
            words = "%s: the checkpoint of step %d cannot be used (%s); trying the one before it"
            log.warning(words, self._folder, step, damage)
        if steps:
            raise CheckpointError(f"{self._folder}: all checkpoints {steps} are damaged; use another folder")
        return None, []

    def _damage(self, step: int) -> str | None:
        """Return a description of the damage of a checkpoint, or None.

        Every process checks its share of the files, and all get the same result.
        """
        share = seals.damage(self._folder / str(step), jax.process_index(), jax.process_count())
        return processes.first(self._unreadable.get(step) or share)

    def _read(self, step: int, like: Any, run: Mapping[str, Any] | None, partial: bool) -> Restored:
        meta = self.meta(step)
        if meta.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {self._folder / str(step)} has format {meta.get('format')}, but this version reads format "
                f"{FORMAT}; start with another --workdir, or use the version that wrote it"
            )
        if run is not None:
            differences = list(_differences(meta.get("run", {}), json.loads(json.dumps(run))))
            if differences:
                raise CheckpointError(
                    f"checkpoint {self._folder / str(step)} is of another run: {'; '.join(differences[:8])}; "
                    "start with another --workdir or with the config of that run"
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
        """Move a damaged checkpoint away, so that its step can be saved again."""
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
        """Seal a checkpoint.

        Called in a thread of Orbax when all files are written, before the folder gets its final name.
        """
        if jax.process_index():
            return
        unnamed = self._folder.glob(f"{self._pending}.orbax-checkpoint-tmp*")
        seals.write(next(unnamed, self._folder / str(self._pending)))

    def _settle(self) -> None:
        """Wait for the current save; a full disk is logged, other errors are raised."""
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
            "the checkpoint of step %s could not be written (%s); the run continues with earlier checkpoints intact",
            self._pending,
            _reason(error),
        )
        self._clean()

    def _room_for(self, state: Any) -> bool:
        """Return whether the disks of all processes have room for a checkpoint."""
        needed = 1.05 * sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes")) + OVERHEAD
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        files = disk.f_favail if disk.f_files else FILES  # some file systems do not count files
        if not processes.anyone(needed > free or files < FILES):
            return True
        log.warning(
            "a checkpoint needs %.1f MB and %d files, but %s has only %.1f MB and %d files free; it is not saved, and "
            "the run continues", needed / 1e6, FILES, self._folder, free / 1e6, files,
        )  # fmt: skip
        return False

    def _clean(self) -> None:
        """Remove the files of interrupted saves."""
        if jax.process_index() == 0:
            for folder in self._folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(folder, ignore_errors=True)


class _Readable(ocp.path.step.NameFormat):
    """Orbax's names of step folders, without the steps that are `unreadable`."""

    def __init__(self, steps: ocp.path.step.NameFormat, unreadable: Mapping[int, str]):
        self._steps, self._unreadable = steps, unreadable

    def build_name(self, step: int) -> str:
        """Return the name of the folder of a step."""
        return self._steps.build_name(step)

    def find_all(self, base_path: Any) -> Iterator[Any]:
        """Return the metadata of every readable step."""
        return (metadata for metadata in self._steps.find_all(base_path) if metadata.step not in self._unreadable)

    def find_step(self, base_path: Any, step: int) -> Any:
        """Return the metadata of one step."""
        return self._steps.find_step(base_path, step)


def _unreadable(folder: Path, steps: ocp.path.step.NameFormat) -> Iterator[tuple[Path, str]]:
    """Yield checkpoints with damaged metadata, with the reason.

    Arrays are only checked by `restore`.
    """
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
    # TensorStore reports errors of the file system as ValueError with the error number in the message.
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
    """Raise an error that lists the first entries whose names or shapes differ."""

    def shapes(tree: Any) -> dict[str, tuple]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {_path(path): (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in leaves if hasattr(leaf, "shape")}

    there, here = shapes(stored), shapes(wanted)
    problems = [f"{name} is missing there" for name in here if name not in there]
    changed = [name for name in here if name in there and there[name] != here[name]]
    problems += [f"{name} is {there[name]} there and {here[name]} here" for name in changed]
    if not partial:
        problems += [f"{name} does not exist here" for name in there if name not in here]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise CheckpointError(f"the checkpoint of step {step} does not fit: {'; '.join(problems[:5])}{more}")


def _path(path: tuple) -> str:
    """Return one name for a leaf, whether its parents are dictionaries, tuples or named tuples."""
    return ".".join(str(next(getattr(k, kind) for kind in ("key", "name", "idx") if hasattr(k, kind))) for k in path)
