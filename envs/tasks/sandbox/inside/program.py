"""The process of one program: drop all privileges, then run the program."""

import _thread
import atexit
import fcntl
import gc
import io
import linecache
import os
import resource
import signal
import sys
import threading
import traceback

from . import calls, kernel, seccomp

NAME = "program.py"
RESERVED_MB = 2048  # extra address space for stacks and heaps of threads
MIN_FILES, MAX_FILES = 16, 256  # open files of a process
SOCKET_BYTES = 320 << 10  # memory that the kernel holds for the data in a socket, at most
HIGH = 200  # first of the worker's descriptors that a program's process still needs


def main(worker, request, descriptors, writers, ready) -> None:
    """Turn this process into the program; never returns."""
    code, with_calls = 1, request["calls"]
    try:
        if worker.group is not None:
            worker.group.enter()
        text = _read(descriptors[0])
        ready = _take_places(descriptors, writers, ready, with_calls)
        _give_up(worker, request["limits"])
        os.write(ready, b"ok")
        os.close(ready)
    except BaseException as failure:
        os.write(ready, f"{type(failure).__name__}: {failure}".encode()[:1000])
        os._exit(1)
    try:
        code = _run(text, request["name"], with_calls)
    finally:
        os._exit(code)


def _read(descriptor):
    size, data = os.fstat(descriptor).st_size, b""
    while len(data) < size:
        data += os.pread(descriptor, size - len(data), len(data))
    return data.decode("utf-8", "surrogatepass").removeprefix("\ufeff")  # as the interpreter does for files


def _take_places(descriptors, writers, ready, with_calls):
    """Move descriptors to their final numbers and return that of the "ready" pipe.

    0 to 2 are the standard streams, 3 is the "ready" pipe (until the program starts), 4 are the calls and 5 their
    results. Descriptors of the worker that are needed a little longer are above `HIGH`.
    """
    moved = [descriptors[1], *writers[:2], ready]
    if with_calls:
        moved += [descriptors[2], writers[2]]
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH + 10) for descriptor in moved]
    for place, descriptor in enumerate(moved):
        os.dup2(descriptor, place)
    os.closerange(len(moved), HIGH)
    return 3


def _give_up(worker, limits):
    os.setsid()
    os.chdir(worker.folder)
    os.umask(0o077)
    os.nice(5)
    environ = dict(os.environ)
    for name in environ:
        del os.environ[name]
    memory, reserved = limits["memory_mb"] << 20, limits["memory_mb"] + RESERVED_MB << 20
    kernel_limits = {
        # Threads reserve address space that they do not use, so the limit is on data; the watcher counts the rest.
        resource.RLIMIT_DATA: reserved,
        resource.RLIMIT_AS: reserved,
        resource.RLIMIT_FSIZE: limits["file_mb"] << 20,
        resource.RLIMIT_NOFILE: max(MIN_FILES, min(MAX_FILES, memory // limits["processes"] // SOCKET_BYTES)),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NPROC: limits["processes"] + 1 + _others(worker),
    }
    for kind, most in kernel_limits.items():
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (min(most, memory) if kind == resource.RLIMIT_DATA else most, most))
    seconds = max(1, -int(-limits["cpu"] // 1))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if worker.uid is not None:
        os.setgroups([])
        os.setresgid(worker.uid, worker.uid, worker.uid)
        os.setresuid(worker.uid, worker.uid, worker.uid)
    elif worker.rules is not None:
        kernel.keep_capabilities(())
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # Without namespaces, the watcher looks for open files without a name. Landlock keeps other programs from doing so.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0 if worker.apart else 1)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if worker.rules is not None:
        worker.rules.apply()
    os.closerange(HIGH, 4096)
    filter_ = worker.filter_for(os.getpid())
    if filter_ is not None:
        seccomp.apply(filter_)


def _others(worker):
    """Return the number of other tasks that count against the process limit.

    It is 0 if the program has its own user.
    """
    if worker.uid is not None:
        return 0
    if worker.apart:
        return 2  # the worker and its parent: since Linux 5.14 a user is counted per user namespace
    own, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == own:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count + 64


def _run(text, name, with_calls):
    """Run a program and return the exit code that the interpreter would return.

    Args:
        text: Source of the program.
        name: Value of `__name__` in the program.
        with_calls: Whether to evaluate the calls of a request after loading the program.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb"), "utf-8", "replace")
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(os.fdopen(1, "wb"), "utf-8", "replace", newline="\n")
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(os.fdopen(2, "wb"), "utf-8", "backslashreplace", line_buffering=True)
    sys.__stdin__ = sys.stdin
    sys.argv = sys.orig_argv = [NAME]
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "inside"]:
        del sys.modules[loaded]
    module = type(sys)(name)
    module.__file__, module.__builtins__ = NAME, __builtins__
    sys.modules["__main__"] = sys.modules[name] = module
    linecache.cache[NAME] = (len(text), None, text.splitlines(True), NAME)  # for source lines in tracebacks
    _allow_large_stacks()
    runner = calls.Runner(4, 5) if with_calls else None
    code = 0
    if runner:
        runner.look(text, name)
    try:
        exec(compile(text, NAME, "exec"), module.__dict__)
    except SystemExit as ending:
        code = _exit_code(ending)
        if runner:
            runner.loading_failed(ending)
    except BaseException as failure:
        code = 1
        _report(failure)
        if runner:
            runner.loading_failed(failure)
    else:
        if runner:
            runner.run(module.__dict__)
    return _finish(code)


def _allow_large_stacks():
    """Let `threading.stack_size` reserve address space beyond the memory limit.

    The kernel counts a stack as data as soon as it is reserved. The watcher counts the part that is used.
    """
    plain = threading.stack_size

    def stack_size(size=0, /):
        before, (_, most) = plain(size), resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        return before

    threading.stack_size = _thread.stack_size = stack_size


def _exit_code(ending):
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _report(failure):
    """Print the traceback, beginning at the program's first frame."""
    try:
        frames = failure.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != NAME:
            frames = frames.tb_next
        sys.stdout.flush()
        traceback.print_exception(type(failure), failure, frames, file=sys.stderr)
    except BaseException:
        os.write(2, type(failure).__name__.encode())


def _finish(code):
    try:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  not in the stubs
        atexit._run_exitfuncs()
        gc.collect()
        sys.stdout.flush()
    except BaseException as failure:
        code = code or 1
        _report(failure)
    try:
        sys.stderr.flush()
    except BaseException:
        code = code or 1
    return code
