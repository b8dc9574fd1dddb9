"""All attacks on the sandbox, under every isolation plan that this machine allows."""

import re
import time

import pytest

from envs.tasks.sandbox import Limits, Sandbox, attacks
from envs.tasks.sandbox.arena import Arena
from tests.envs.tasks.bombs import BOMBS
from tests.envs.tasks.sandboxes import WAYS, sandbox_of


@pytest.fixture(scope="module")
def arena():
    made = Arena()
    yield made
    made.close()


@pytest.mark.parametrize("attack", (*attacks.PROBES, *BOMBS), ids=lambda attack: attack.name)
@pytest.mark.parametrize("way", WAYS)
def test_contained(way, attack, arena):
    sandbox = sandbox_of(way)
    started = time.monotonic()
    result = sandbox.run_sync(attack.source(arena), limits=attack.limits)
    seconds = time.monotonic() - started
    assert attack.check(arena, result) == "", result
    assert seconds < attack.limits.wall + 1
    after = sandbox.run_sync("import os\nprint(os.listdir('.'))")
    assert (after.status, after.stdout) == ("ok", "[]\n"), "the next program finds a clean place"


@pytest.mark.parametrize("attack", attacks.PROBES, ids=lambda attack: attack.name)
def test_an_attack_that_gets_out_would_do_no_harm(attack):
    """Probes may kill and change only what the arena made, because they run before isolation is known to work."""
    for line in attack.program.splitlines():
        if "SIGKILL" in line or "SIGSTOP" in line:
            assert 'REACH["victim"]' in line, line
        if "os.kill(" in line or "killpg" in line:
            assert "-1" not in line, line
    changes = r"attempt\([^,]+, (?:write|os\.(?:mkdir|unlink|truncate|rename|chmod|chown|utime|setxattr)), (.*?)[,)]"
    assert set(re.findall(changes, attack.program)) <= {
        "f\"{folder}/{REACH['token']}\"", "f\"{folder}/{REACH['token']}-folder\"", 'REACH["file"]',
    }  # fmt: skip


def test_attacks_work_where_nothing_stops_them(arena):
    """The attacks are real: with limits only, files, environment and sockets are reached."""
    with Sandbox(1, mode="process") as sandbox:
        escaped = {
            attack.name
            for attack in attacks.PROBES
            if attack.name in ("reading files of the trainer", "network over IPv4", "unix sockets")
            and attack.check(arena, sandbox.run_sync(attack.source(arena), limits=attack.limits))
        }
    assert escaped == {"reading files of the trainer", "network over IPv4", "unix sockets"}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_ignores_every_signal_ends_at_its_wall_limit(way):
    program = (
        "import os, signal, time\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "for _ in range(3): os.fork()\n"
        "os.setsid() if os.getpid() != os.getsid(0) else None\n"
        "while True: time.sleep(0.01)\n"
    )
    started = time.monotonic()
    result = sandbox_of(way).run_sync(program, limits=Limits(wall=0.5))
    assert (result.status, result.limit) == ("limit", "wall")
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("way", WAYS)
def test_folders_nested_too_deeply_to_remove_do_not_stay(way):
    program = "import os\nfor _ in range(3000):\n    os.mkdir('d', 0o300)\n    os.chdir('d')\nprint('deep', flush=True)"
    sandbox = sandbox_of(way)
    result = sandbox.run_sync(program, limits=Limits(wall=10, cpu=10))
    assert result.stdout == "deep\n" or result.limit == "files"
    assert sandbox.run_sync("import os\nprint(os.listdir('.'))").stdout == "[]\n"
