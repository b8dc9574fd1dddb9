"""The program and the commands of docs/agents.md do what the page says."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from envs.tasks.program.task import AgentProgram, ProgramResult, read_result
from marl_jax.schema import flags, validate
from marl_jax.serving.sessions.episodes import episode_server
from tests.marl_jax.tiny_host import make_rollout
from tests.marl_jax.tiny_serving import Parrot

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "agents.md").read_text()
((NAME, CODE),) = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [c.replace("\\\n", " ") for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
            for c in re.findall(r"python launch.py (?:.*\\\n)*.*", block)]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the program of the page, the examples, the experiments and the tests."""
    (tmp_path / NAME).write_text(CODE)
    for name in ("examples", "experiments", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "sums" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


def test_the_program_of_the_page_is_played_and_paid():
    pytest.importorskip("openai", reason="openai is not installed (pip install -e .[test])")
    task = AgentProgram(NAME)
    right = {row["question"]: row["answer"] for row in task.examples("train")}
    sampler = Parrot(lambda prompt: str(next(n for question, n in right.items() if question in prompt)))
    rollout = make_rollout(task, sampler, n_examples=2, samples=1, server=episode_server, budget=16)
    _, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    assert metrics["episodes/finished"] == 2 and metrics["success"] == metrics["reward/team"] == 1.0
    assert "Answer with the number alone." in sampler.tokenizer.decode(sampler.asked[0][0])


def test_the_result_of_the_page_is_read():
    (line,) = re.findall(r"```json\n(.*?)\n```", PAGE)
    assert read_result(line, ("solver", "verifier")) == ProgramResult(1.0, {"verifier": 0.5}, 1.0, "42", {"rounds": 2})


def test_the_commands_of_the_page_are_accepted():
    assert len(COMMANDS) == 11
    for command in COMMANDS:
        words = shlex.split(command.partition(" # ")[0].replace("ENVIRONMENT/bin/python", sys.executable))
        config = flags.parse(words[1:], ("train",)).config
        validate.check(config)
        assert config.task.name == "program"


def test_the_page_names_every_reason_and_every_example():
    source = (ROOT / "envs" / "tasks" / "program" / "task.py").read_text()
    for reason in re.findall(r'reason = "(\w+)"', source):
        assert f"`{reason}`" in PAGE
    for example in {*(ROOT / "examples").glob("*.py")} - {ROOT / "examples" / "minimal_grpo.py"}:  # no agent program
        assert f"../examples/{example.name}" in PAGE
