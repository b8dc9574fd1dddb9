"""The examples in docs/tasks.md work as described."""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from envs.tasks import TASKS, scripted
from envs.tasks.workflow.draw import draw
from marl_jax.api import registering
from marl_jax.schema import flags, validate
from tests.marl_jax.tiny_host import FakeSampler, make_rollout

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tasks.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [c.replace("\\\n", " ") for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
            for c in re.findall(r"python launch.py (?:.*\\\n)*.*", block)]  # fmt: skip


def test_the_examples_print_what_the_page_shows():
    examples = re.findall(r"```python\n(?!# )(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    for code, shown in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/tasks.md", "exec"), {"__name__": "example"})
        assert printed.getvalue() == shown


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make the files of the page importable, and remove what they register afterwards."""
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    TASKS.names()
    monkeypatch.setattr(TASKS, "_entries", dict(TASKS._entries))
    monkeypatch.setattr(registering, "MODULES", dict(registering.MODULES))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def test_tasks_of_ones_own_are_added_from_outside_and_played(package):
    command = next(c for c in COMMANDS if "capitals" in c)
    config = flags.parse(["launch.py", *shlex.split(command)[2:]], ("train",)).config
    validate.check(config)
    validate.load_plugins(["my_package.haiku", "my_package.sums"])

    capitals = TASKS.get(config.task.name)()
    example = {"country": "Peru", "answer": "Lima"}
    long = "Lima, which is by the sea and very, very large"
    for text, reward, success in (("Lima", 1.1, 1), (long, 1.0, 1), ("?", 0.1, 0)):
        outcome, ask = scripted.play(capitals, example, lambda *_, text=text: text)
        assert outcome.success == success and ask.replies[0][2].rewards.team == pytest.approx(reward)

    haiku = TASKS.get("haiku")()
    assert haiku.roles == ("poet", "critic")
    for said, length in ((["a\nb", "nothing", "never"], 2), (["a\nb", "more lines", "a\nb\nc"], 3)):
        outcome, ask = scripted.play(haiku, {"topic": "rain"}, lambda *_, said=said: said.pop(0))
        assert len(ask.replies) == length and outcome.success == (length == 3)

    sums = TASKS.get("sums")()
    assert sums.roles == ("planner", "worker", "critic")
    for said, reason, paid in (
        (["think", "8", "ACCEPT"], "done", [0.1, 1, 0.5]),
        (["think", "7", "Too small", "8", "ACCEPT"], "done", [0.1, 0, 0.5, 1, 0.5]),
        (["think", "7", "REPLAN", "x" * 300, "8", "Hm", "8", "Hm"], "max_steps", [0.1, 0, 0.5, 0, 1, 0, 1, 0]),
    ):
        row = {"question": "What is 2 + 3 * 2?", "answer": "8"}
        outcome, ask = scripted.play(sums, row, lambda *_, said=said: said.pop(0))
        assert not said and outcome.success == 1 and outcome.reason == reason
        assert [reply.rewards.agent for *_, reply in ask.replies] == pytest.approx(paid)
    assert draw(sums.graph) == (ROOT / "docs" / "workflow.svg").read_text(), "draw it again"

    for task in (capitals, haiku, sums):
        rollout = make_rollout(task, FakeSampler(), n_examples=2, samples=2)
        _, state, metrics = rollout({}, rollout.init(None, None))
        rollout.close()
        assert metrics["episodes/finished"] == 4 and state["position"] == 2


def test_the_commands_of_the_page_are_accepted(package):
    assert len(COMMANDS) == 10
    for command in COMMANDS:
        arguments = [a for a in shlex.split(command.partition("#")[0])[2:] if not a.startswith("--workdir")]
        if not any(a.startswith("--config=") for a in arguments):
            arguments.append("--config=experiments/nli.py:single")
        validate.check(flags.parse(["launch.py", *arguments], ("train", "eval")).config)
