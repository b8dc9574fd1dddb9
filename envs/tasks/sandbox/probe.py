"""Choosing an isolation plan by testing plans with real attacks, the strongest first."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys

from envs.tasks.sandbox import launch
from envs.tasks.sandbox.arena import Arena
from envs.tasks.sandbox.attacks import PROBES
from envs.tasks.sandbox.results import Limits, SandboxUnavailable
from envs.tasks.sandbox.worker import SandboxWorker, WorkerFailed, WorkerLate

log = logging.getLogger(__name__)

# Each entry shows the effect of one layer, as far as it is visible to a program.
_LOOK = """
import json, os
def fails(function, *arguments):
    try:
        function(*arguments)
    except OSError as failure:
        return type(failure).__name__
    return ""
import csv  # not loaded before: the standard library can be read
open("own", "w").close()
print(json.dumps({
    "uid": os.getuid(), "groups": os.getgroups(), "parent": os.getppid(),
    "landlock": fails(os.listdir, "/"), "seccomp": fails(os.chmod, "own", 0o600),
}))
"""


def ways() -> tuple[launch.Plan, ...]:
    """Return the available plans, the strongest first."""
    bubblewrap = (launch.Plan("bubblewrap"),) if shutil.which("bwrap") else ()
    return (*bubblewrap, launch.Plan("unshare"), launch.Plan(None))


def choose(plans: tuple[launch.Plan, ...] | None = None) -> tuple[launch.Plan, tuple[str, ...]]:
    """Return the first plan that contains every attack, and its active layers.

    Raises:
        SandboxUnavailable: No plan contains all attacks.
    """
    reasons = []
    if not sys.platform.startswith("linux"):
        plans, reasons = (), [f"{sys.platform} has neither Landlock nor seccomp"]
    for plan in ways() if plans is None else plans:
        layers, reason = examine(plan)
        if not reason:
            return plan, layers
        reasons.append(f"{plan.namespaces or 'without namespaces'}: {reason}")
        log.info("sandbox: %s", reasons[-1])
    raise SandboxUnavailable(
        "this machine cannot isolate programs:\n  "
        + "\n  ".join(reasons)
        + "\nTo run them with resource limits only, with access to your files and the network, set sandbox=process "
        "(Sandbox(mode='process'))."
    )


def examine(plan: launch.Plan) -> tuple[tuple[str, ...], str]:
    """Test a plan.

    Returns:
        The active layers, and the reason why the plan cannot be used, or "".
    """
    try:
        worker = SandboxWorker(plan)
    except WorkerFailed as failure:
        return (), str(failure)
    arena = Arena()
    try:
        result, _, reusable = worker.execute(_LOOK, "", Limits(wall=10.0, cpu=10.0))
        if result.status != "ok" or not reusable:
            return (), f"a harmless program failed: {result.status} {result.stderr[-300:]}"
        layers, missing = _layers(plan, json.loads(result.stdout), worker)
        if missing:  # attacks run only if all layers are active
            return layers, "; ".join(missing)
        for attack in PROBES:
            result, _, reusable = worker.execute(attack.source(arena), "", attack.limits)
            escaped = attack.check(arena, result)
            if escaped:
                missing.append(f"{attack.name}: {escaped}")
            if not reusable:
                worker.close()
                worker = SandboxWorker(plan)
        return layers, "; ".join(missing)
    except (WorkerFailed, WorkerLate) as failure:
        return (), str(failure)
    finally:
        worker.close()
        arena.close()


def _layers(plan, seen, worker):
    """Return the layers whose effect was observed, and the problems with missing ones."""
    layers, missing = [], []
    if plan.namespaces:
        kinds = "mount, pid, net, ipc, uts" + (", user" if os.geteuid() else "")
        held = seen["parent"] == 1
        (layers if held else missing).append(f"namespaces by {plan.namespaces} ({kinds})")
    if seen["uid"] != os.geteuid() and seen["groups"] == []:
        layers.append("own user")
    elif os.geteuid() == 0:
        missing.append("own user (programs would run as root)")
    for name, held in (
        (f"Landlock ABI {worker.landlock}", seen["landlock"] == "PermissionError"),
        ("seccomp", seen["seccomp"] == "PermissionError"),
    ):
        (layers if held else missing).append(name)
    layers += ["cgroup"] if worker.grouped else []
    return (*layers, "rlimits"), [f"{name} is not active" for name in missing]
