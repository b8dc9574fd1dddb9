"""Sweeps: several runs in one process, which share compiled programs (`--seeds`, `--sweep.FIELD`).

    python launch.py --config=experiments/tic_tac_toe_selfplay.py --seeds=0,1,2 --sweep.optim.lr=2e-3,5e-4

Every member is a run in a subfolder, and can be resumed, evaluated and served like any other run. Running the command
again continues unfinished members and skips the others; more seeds or values add members. A member that fails does not
stop the others.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import RunError, user_errors
from marl_jax.modes import report, train
from marl_jax.running import console
from marl_jax.running.metrics import replace_text
from marl_jax.running.processes import workdir_lock
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import sweeps
from marl_jax.schema.sweeps import Member

log = logging.getLogger(__name__)


def main(members: Sequence[Member], workdir: Path) -> None:
    """Train the members of a sweep one after the other, and compare them.

    Raises:
        RunError: If the folder belongs to a single run, or members have failed.
    """
    if (workdir / "config.json").exists():
        raise RunError(f"{workdir} is the folder of a single run; choose another --workdir for the sweep")
    with workdir_lock(workdir), GracefulStop() as stop:
        errors = _earlier_errors(workdir)
        _write(members, workdir, errors)
        programs, shapes = SharedPrograms(), members[0].shapes
        for number, member in enumerate(members, 1):
            folder = workdir / member.name
            if train.all_steps_done(folder, member.config.steps, member.config.stop_when):
                log.info("run %d of %d has finished: %s", number, len(members), member.name)
                continue
            if member.shapes != shapes:  # frees the programs of the others
                programs, shapes = SharedPrograms(), member.shapes
            log.info("run %d of %d: %s", number, len(members), member.name)
            errors[member.name] = _train(member, folder, stop, programs)
            gc.collect()  # frees device memory in reference cycles before the next member needs it
            _write(members, workdir, errors)
            if stop.asked:
                log.info("the sweep was stopped; run the same command to continue")
                break
    report.main(workdir)
    failed = [f"{member.name}: {errors[member.name]}" for member in members if errors.get(member.name)]
    if failed:
        raise RunError("\n".join([f"{len(failed)} of {len(members)} runs of the sweep failed:", *failed]))


def _train(member: Member, folder: Path, stop: GracefulStop, programs: SharedPrograms) -> str:
    """Train one member and return why it failed, or ""."""
    with console.also_log_to(folder):
        try:
            train.train_stages(member.config, folder, stop, programs)
        except user_errors() as error:
            log.error("%s failed: %s", member.name, error)
            return str(error)
        except Exception as error:  # whatever it is, the other members are still of use
            log.exception("%s failed", member.name)
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _earlier_errors(workdir: Path) -> dict[str, str]:
    """Return the errors of members that finished with one, from an earlier start."""
    return {entry["name"]: entry.get("error", "") for entry in report.read_sweep(workdir)}


def _write(members: Sequence[Member], workdir: Path, errors: dict[str, str]) -> None:
    """Write the members to `sweep.json`, after those of earlier commands."""
    entries = {entry["name"]: entry for entry in report.read_sweep(workdir)}
    for member in members:
        values = json.loads(json.dumps(dict(member.values), default=str))
        entries[member.name] = {"name": member.name, "values": values, "error": errors.get(member.name, "")}
    replace_text(workdir / sweeps.FILE, json.dumps({"members": list(entries.values())}, indent=2) + "\n")
