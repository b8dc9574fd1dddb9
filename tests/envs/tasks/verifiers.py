"""Functions that tests call in other processes."""

import hashlib
import os
import sys
import time


def double(x):
    print("not an answer")
    return 2 * x


def hang():
    time.sleep(1000)


def spin():
    while True:
        pass


def fail():
    raise KeyError("gone")


def leave():
    sys.exit(3)


def die():
    os._exit(1)


def hoard():
    return len(bytearray(1 << 36))


def strange():
    return {1, 2}


def process():
    return os.getpid()


def note_and_spin(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    spin()


def number(answer):
    return hashlib.sha256(answer.encode()).digest()[0]


def cases_by_number(answer, entry_point, most):
    """Return a test of a built-in problem with this function for every other answer."""
    from envs.tasks.code import sample

    tests = [row["tests"][0] for row in sample.rows() if row["entry_point"] == entry_point]
    return {"tests": tests[:1] if number(answer) % 2 else [], "unreadable": 0}
