"""Prints which layers hold on this machine and what became of every attack.

python -m envs.tasks.sandbox              # the way that is chosen here
python -m envs.tasks.sandbox --all        # every way that could be chosen
"""

from __future__ import annotations

import argparse
import sys
import time

from envs.tasks.sandbox import Sandbox, SandboxUnavailable, attacks, probe
from envs.tasks.sandbox.arena import Arena


def main() -> int:
    """The exit code: 0 if everything is contained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="try every way to isolate, not only the one chosen here")
    every = parser.parse_args().all
    escaped = 0
    for plan in probe.ways() if every else (None,):
        try:
            sandbox = Sandbox(1, plan=plan)
        except SandboxUnavailable as unavailable:
            print(unavailable)
            escaped += not every
            continue
        with sandbox:
            print(f"layers: {', '.join(sandbox.layers)}")
            escaped += table(sandbox)
    return 1 if escaped else 0


def table(sandbox: Sandbox) -> int:
    """Run every attack and print what became of it; how many got out."""
    escaped = 0
    arena = Arena()
    try:
        for attack in attacks.PROBES:
            started = time.monotonic()
            result = sandbox.run_sync(attack.source(arena), limits=attack.limits)
            seconds = time.monotonic() - started
            why = attack.check(arena, result)
            late = "" if seconds < attack.limits.wall + 1 else f"took {seconds:.1f} s"
            escaped += bool(why or late)
            ending = f"{result.status} {result.limit or ''}".strip()
            print(f"  {attack.name:36} {why or late or 'contained':12} {ending:18} {seconds:6.2f} s")
    finally:
        arena.close()
    return escaped


if __name__ == "__main__":
    sys.exit(main())
