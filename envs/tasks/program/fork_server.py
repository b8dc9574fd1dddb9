"""Server that loads a Python program once and forks for every run of it.

    PYTHON fork_server.py FD PROGRAM.py [ARGUMENT …]

The script runs in the program's own interpreter. FD is a socket of `envs.tasks.program.preload`. Each run begins with
one byte and four files on it: a socket of the run, and the run's stdin, stdout and stderr. The server writes the
child's pid to the run's socket, and later its exit code as in `subprocess`. The child reads its environment variables
from there, a JSON object in one line, and ends if there are none.

The program is loaded with a __name__ other than "__main__", so code under the usual guard runs only in the children.
The children are forks, so anything that a program does while it is loaded, such as starting threads, must not need to
be done again. Exit handlers do not run.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback


def main() -> None:
    """Serve until the other end of the socket is closed."""
    control, program = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    sys.argv, sys.path[0] = sys.argv[2:], os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__preload__")
    awake, wakes = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([control, awake], [], [])
        if control in readable:
            byte, files, _, _ = socket.recv_fds(control, 1, 4)
            if not byte:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setpgid(0, 0)
                control.close()
                run(program, *files)
            with contextlib.suppress(OSError):  # the child has done it, or has already ended
                os.setpgid(pid, pid)
            running[pid] = socket.socket(fileno=files[0])
            for file in files[1:]:
                os.close(file)
            _send(running[pid], pid)
        if awake in readable:
            os.read(awake, 1 << 16)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with running.pop(pid) as connection:
                _send(connection, os.waitstatus_to_exitcode(status))


def run(program: str, connection: int, *standard: int) -> None:
    """Run the program in a child process. Does not return."""
    code = 1
    try:
        for number, file in enumerate(standard):
            os.dup2(file, number)
            os.close(file)
        with open(connection) as lines:
            variables = lines.readline()
        if variables.endswith("\n"):
            os.environ.update(json.loads(variables))
            runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code & 0xFF)


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        connection.sendall(b"%d\n" % number)


if __name__ == "__main__":
    main()
