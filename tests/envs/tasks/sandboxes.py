"""Sandboxes for tests: one for every way to isolate that this machine allows, made once."""

import functools
import os
import shutil
import sys
from pathlib import Path

import pytest

from envs.tasks.sandbox import Sandbox, SandboxUnavailable, launch

WAYS = ("bubblewrap", "unshare", "none")


def python_for_anyone():
    """An interpreter that another user can run; without a mount namespace programs need one."""
    own = os.path.realpath(sys._base_executable)
    for path in (own, "/usr/bin/python3", "/usr/local/bin/python3"):
        real = Path(os.path.realpath(path))
        if real.exists() and (os.geteuid() or all(folder.stat().st_mode & 1 for folder in real.parents)):
            return None if str(real) == own else path
    pytest.skip(f"no interpreter that users other than root can run ({own} is in a closed folder)")


def plan_of(way):
    """The plan of a way; skips where something it needs is not installed."""
    if way == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    return launch.Plan(None, python=python_for_anyone()) if way == "none" else launch.Plan(way)


@functools.cache
def _of(way, plan):
    try:
        return Sandbox(1, plan=plan)
    except SandboxUnavailable as unavailable:
        return unavailable


def sandbox_of(way):
    """The sandbox of a way, shared by the tests of a process; skips with the reason where it is not possible."""
    found = _of(way, plan_of(way))
    if isinstance(found, SandboxUnavailable):
        pytest.skip(str(found))
    return found


def any_sandbox():
    """The sandbox of the first way that is possible here."""
    reasons = []
    for way in WAYS:
        try:
            return sandbox_of(way)
        except pytest.skip.Exception as skipped:
            reasons.append(f"{way}: {skipped}")
    pytest.skip("; ".join(reasons))


def enough(program):
    """Seconds of CPU time: few for a program that takes all of them, many for one that must not come near them."""
    return 0.2 if "while True" in program else 2.0
