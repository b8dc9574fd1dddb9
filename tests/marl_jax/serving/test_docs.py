"""The examples of docs/serving.md work as described."""

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from marl_jax import cli
from marl_jax.errors import ConfigError
from marl_jax.schema import flags, validate
from marl_jax.serving.sessions.traces import TraceFile, read_traces
from marl_jax.setup.served_models import ModelPlace
from tests.marl_jax import tiny_run
from tests.marl_jax.tiny_serving import Parrot, endpoint, served

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serving.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.partition(" # ")[0] for block in SHELL for line in block.splitlines() if "launch.py" in line]
ADDRESS = "http://127.0.0.1:8000"


def first_served():
    """The names that the first command of the page serves."""
    config = flags.parse(shlex.split(COMMANDS[0])[1:], tuple(cli.MODES)).config
    return [ModelPlace.parse(entry).name for entry in config.serve.models]


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("bash"), reason="curl or bash is not installed")
def test_the_requests_of_the_page_are_answered(tmp_path):
    blocks = [block for block in SHELL if "curl" in block]
    assert len(blocks) == 2 and sum(block.count("curl -") for block in blocks) == 9
    with endpoint(Parrot(), first_served(), traces=TraceFile(tmp_path / "traces.jsonl")) as (url, found):
        for block in blocks:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.replace(ADDRESS, url)], cwd=tmp_path, capture_output=True,
                text=True, timeout=60, env=os.environ | {"no_proxy": "*"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            answered = done.stdout
            assert "[DONE]" in answered or '"ended":true' in answered
        assert not found.sessions.open_sessions
    seen = json.loads((tmp_path / "session.json").read_text())
    (trace,) = read_traces(tmp_path / "traces.jsonl").values()
    assert trace.session == seen["id"] and trace.ended
    assert [answer.rewards for call in trace.calls.values() for answer in call.answers] == [{"team": 1.0}]


def test_the_client_of_the_page_is_answered():
    pytest.importorskip("openai", reason="openai is not installed (pip install -e .[test])")
    (code,) = [code for code in PYTHON if "OpenAI(" in code]
    printed = io.StringIO()
    with endpoint(Parrot(lambda prompt: "ab"), first_served()) as (url, _), contextlib.redirect_stdout(printed):
        exec(compile(code.replace(ADDRESS, url), "docs/serving.md", "exec"), {})
    assert printed.getvalue() == "['ab', 'ab']\n"


def test_the_trainer_of_the_page_gets_conversations():
    (code,) = [code for code in PYTHON if "in_loop" in code]
    names = {}
    exec(compile(code, "docs/serving.md", "exec"), names)

    async def program(url, key):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"model": "one", "messages": [{"role": "user", "content": "x"}], "temperature": 0.1})
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
            f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert b" 200 " in await reader.readline()
        await reader.read()
        writer.close()
        return 0.5

    sampler = Parrot()
    rollout = asyncio.run(names["rollout"](served(sampler), program))
    assert len(rollout) == 4
    for (chat,) in rollout:
        assert chat.said[0].replies[0].rewards.team == 0.5 and chat.tokens[: chat.said[0].start] == sampler.asked[0][0]
    assert {sampling.temperature for _, sampling in sampler.asked} == {1.0}  # the policy's


def test_the_commands_of_the_page_are_accepted(tmp_path):
    assert len(COMMANDS) == 6
    (tmp_path / "config.json").write_text(json.dumps(tiny_run.get_config().to_dict()))
    for command in COMMANDS:
        arguments = shlex.split(command.replace("runs/mine", str(tmp_path)))[1:]
        found = flags.parse(arguments, tuple(cli.MODES))
        validate.check(found.config, found.values.mode)
    assert flags.parse(shlex.split(COMMANDS[0])[1:], tuple(cli.MODES)).name == "serve"
    with pytest.raises(ConfigError, match="serve.models, --config.serve.runs, --config=experiments/NAME.py or"):
        flags.parse(["launch.py", "--mode=serve", f"--workdir={tmp_path / 'none'}"], tuple(cli.MODES))
