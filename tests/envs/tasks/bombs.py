"""Programs that use up a resource, or try what the system call filter refuses. The sandbox must contain them."""

from envs.tasks.sandbox.attacks import Attack, ended, printed, refused
from envs.tasks.sandbox.results import Limits


def _bounded(arena, result):
    if result.limit != "output" or len(result.stdout) > 64 << 10:
        return f"{len(result.stdout)} characters, limit {result.limit}"
    return ""


BOMBS = (
    Attack(
        "fork bomb",
        """
libc.prctl(15, REACH["token"].encode(), 0, 0, 0)
while True:
    try:
        if not os.fork():
            os.setsid()
    except OSError:
        pass
""",
        ended(("processes",)),
    ),
    Attack(
        "thread bomb",
        """
import threading
while True:
    threading.Thread(target=time.sleep, args=(600,)).start()
""",
        ended(("processes",)),
    ),
    Attack(
        "memory bomb",
        "held = []\nwhile True:\n    held.append(bytearray(1 << 24))\n",
        ended(("memory",)),
        Limits(wall=3.0, memory_mb=128),
    ),
    Attack(
        "memory bomb in several processes",
        """
libc.prctl(15, REACH["token"].encode(), 0, 0, 0)
for _ in range(4):
    if not os.fork():
        break
held = bytearray(b"x" * (1 << 20) * 50)
time.sleep(600)
""",
        ended(("memory",)),
        Limits(wall=3.0, memory_mb=128),
    ),
    Attack(
        "10 GB of output",
        "block = b'x' * (1 << 20)\nfor _ in range(10 << 10):\n    os.write(1, block)\n",
        _bounded,
    ),
    Attack("endless computation", "while True:\n    pass\n", ended(("cpu", "wall")), Limits(wall=2.0, cpu=0.3)),
    Attack("endless waiting", "signal.alarm(0)\ntime.sleep(600)\n", ended(("wall",)), Limits(wall=0.4)),
    Attack(
        "a large file",
        "with open('file', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))\n",
        ended(("files",)),
    ),
    Attack(
        "many files",
        """
for index in range(10 ** 7):
    with open(f"file{index}", "wb") as file:
        file.write(bytes(1 << 16))
""",
        ended(("files",)),
    ),
    Attack(
        "a new user namespace",
        "print('ESCAPED' if libc.unshare(0x10000000) == 0 else 'no')\n",
        refused,
    ),
    Attack("io_uring", "libc.syscall(425, 8, ctypes.create_string_buffer(120))\n", refused),
    Attack("memory of another process", "libc.process_vm_readv(REACH['victim'], 0, 0, 0, 0, 0)\n", refused),
    Attack(
        "a newer system call",
        "print('ESCAPED' if libc.syscall(435, 0, 0) != -1 or ctypes.get_errno() != 38 else 'no')\n",
        printed,
    ),
)
