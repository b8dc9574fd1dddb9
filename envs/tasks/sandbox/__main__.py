"""Print the isolation layers of this machine and the result of every attack.

python -m envs.tasks.sandbox              # the plan that is chosen on this machine
python -m envs.tasks.sandbox --all        # every available plan
"""

from __future__ import annotations

import argparse
import sys
import time

from envs.tasks.sandbox import Sandbox, SandboxUnavailable, attacks, probe
from envs.tasks.sandbox.arena import Arena


def main() -> int:
    """Run all attacks and return the exit code, 0 if every attack is contained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="Try every isolation plan instead of only the chosen one")
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
    """Print the result of every attack and return the number of escapes."""
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
