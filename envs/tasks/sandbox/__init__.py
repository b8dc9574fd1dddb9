"""A sandbox for untrusted Python programs, such as those written by a model.

    from envs.tasks.sandbox import Limits, Sandbox

    sandbox = Sandbox()
    result = sandbox.run_sync("print(int(input()) + 1)", stdin="41", limits=Limits(wall=2.0))
    print(result.status, result.stdout)

`python -m envs.tasks.sandbox` prints the isolation layers that are active on this machine. See docs/sandbox.md.
"""

from envs.tasks.sandbox.pool import Sandbox, same_sandbox, shared_sandbox
from envs.tasks.sandbox.results import CallResult, Limits, SandboxResult, SandboxUnavailable, TestResult

__all__ = [
    "CallResult",
    "Limits",
    "Sandbox",
    "SandboxResult",
    "SandboxUnavailable",
    "TestResult",
    "same_sandbox",
    "shared_sandbox",
]
