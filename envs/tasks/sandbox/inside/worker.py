"""The worker's loop: set up isolation once, then run and supervise programs."""

import gc
import os
import signal
import socket

from . import cgroup, folder, kernel, landlock, namespaces, program, seccomp, syscalls, tree, watch, wire


class Worker:
    """State that all programs of a worker share.

    Args:
        connection: Socket to the sandbox.
        spec: First message of the sandbox: `namespaces` ("bubblewrap", "unshare" or None), `layers` (False for limits
            only), `folder` (the private folder), `uid` (a separate user, if the worker is root), the paths `readable`,
            `listable`, `hidden` and `devices`, and `scratch_mb`.
        group: Descriptor of the folder of a control group for the programs, or None.
    """

    def __init__(self, connection, spec, group=None):
        self.connection = connection
        self.folder = spec["folder"]
        self.uid = spec["uid"]
        self.rules = self.filter = None
        self.apart = spec["namespaces"] is not None
        if spec["namespaces"] == "unshare":
            namespaces.enter(spec)
        if self.apart and os.getpid() != 1:
            raise OSError(f"the worker should be process 1 of its namespace and is {os.getpid()}")
        if not self.apart:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if self.uid is not None:
            kernel.keep_capabilities(kernel.WORKER_CAPABILITIES.values())
            os.chown(self.folder, self.uid, self.uid)
        self.tree = tree.ProcessTree(self.apart, self.uid)
        self.scoped = False
        self.group = cgroup.ControlGroup.usable(group)
        if spec["layers"]:
            self._prepare_layers(spec)
        # Another process of the same user may neither trace this one nor read its memory.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)

    def _prepare_layers(self, spec):
        listed = [
            os.path.join(parent, name)
            for parent in spec["listable"]
            for name in sorted(os.listdir(parent))
            if os.path.join(parent, name) not in spec["hidden"]
        ]
        readable = [path for path in spec["readable"] if path not in spec["listable"]]
        self.rules = landlock.Rules([*readable, *listed], [self.folder], spec["devices"], program.HIGH)
        for parent in spec["listable"]:
            self.rules.allow_listing(parent)
        self.scoped = self.rules.version >= landlock.SCOPE_SIGNALS_ABI
        machine = syscalls.machine()
        if machine is None:
            raise OSError(f"there is no table of system calls for {os.uname().machine}")
        self.filter = seccomp.program(*machine)
        self._machine = machine

    def filter_for(self, pid: int) -> bytes | None:
        """Return the system call filter of a program.

        If nothing else restricts its signals, the filter allows them only to the program itself.
        """
        if self.filter is None or self.scoped or self.apart or self.uid is not None:
            return self.filter
        return seccomp.program(*self._machine, own_pid=pid)


def serve() -> None:
    """Answer requests until the sandbox closes the connection."""
    connection = socket.socket(fileno=os.dup(0))
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C is for the trainer, which closes the connection
        signal.signal(number, signal.SIG_IGN)
    try:
        spec, group = wire.receive(connection)
    except EOFError:
        return
    try:
        worker = Worker(connection, spec, *group)
    except OSError as failure:
        wire.send(connection, {"failed": str(failure)})
        return
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    gc.collect()
    gc.freeze()  # current objects are shared by all programs and never collected
    version = worker.rules.version if worker.rules else 0
    wire.send(connection, {"ready": True, "landlock": version, "cgroup": worker.group is not None})
    while True:
        try:
            request, descriptors = wire.receive(connection)
        except (EOFError, ConnectionError):
            break
        if not watch.run(worker, request, descriptors, program.main):
            break
    if not worker.apart and folder.empty(worker.folder):  # the sandbox may have ended before it could do this
        os.rmdir(worker.folder)
