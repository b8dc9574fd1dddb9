"""Complete runs with remote agents, frozen agents and judges: limits, resuming and refusals before compilation."""

import json
import logging
import time

import jax
import numpy as np
import pytest

from configs import defaults
from marl_jax import cli
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metric_help import explain
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import flags, overrides, validate
from tests.marl_jax import tiny_run, tiny_task
from tests.marl_jax.fake_openai import fake_openai

pytestmark = pytest.mark.long


def config_of(place, **changes):
    config = tiny_task.get_config("grpo")
    overrides.apply(config, {"agents.writer": "main", "agents.editor": place, "checkpoint.every": 100} | changes)
    del config.agents["all"]
    validate.check(config)
    return config


def run(config, workdir):
    train.train(config, workdir)
    return read_json_lines(workdir / "metrics.jsonl")


def weights(workdir):
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored.step, restored.state


def says(body):
    return f"reply {body['seed']}"


def test_a_remote_agent_plays_in_a_run_and_is_not_trained(tmp_path):
    with fake_openai(reply=says) as server:
        rows = run(config_of(server.place, steps=1), tmp_path)
    assert rows[0]["remote/requests"] == 4 and len(server.asked) == 4 and rows[0]["episodes/failed"] == 0
    assert rows[0]["completions_trained"] == 8 and rows[0]["completions"] == 12
    assert not [name for name in rows[0] if explain(name) is None]


@pytest.mark.nightly
def test_a_limit_of_cost_saves_and_stops_and_the_run_continues_from_there(tmp_path):
    with fake_openai(reply=says, usage=(0, 1)) as server:
        whole = run(config_of(server.place), tmp_path / "whole")
        assert [row["remote/requests"] for row in whole] == [4, 4, 4]
        expected, bodies = weights(tmp_path / "whole"), [str(body) for body in server.asked]
        server.asked.clear()
        limited = {"remote.price_out": 1e6, "remote.max_cost": 12.0}  # a request may cost 6 and costs 1
        with pytest.raises(RunError, match="config.remote.max_cost is 12, but .* Raise it to continue the run"):
            run(config_of(server.place, **limited), tmp_path / "limited")
        assert weights(tmp_path / "limited")[0] == 1 and 4 < len(server.asked) < 12
        rows = run(config_of(server.place), tmp_path / "limited")
        assert [row["step"] for row in rows] == [1, 2, 3]
        assert sorted(str(body) for body in server.asked) == sorted(bodies)  # nothing twice
        jax.tree.map(np.testing.assert_array_equal, expected, weights(tmp_path / "limited"))
        spent = [json.loads(line) for line in (tmp_path / "limited" / "remote" / "cost.jsonl").read_text().splitlines()]
        assert {row["request"]: row["cost"] for row in spent} == dict.fromkeys(range(len(spent) // 2), 1.0)


@pytest.mark.nightly
def test_another_model_stops_a_run_and_may_be_accepted(tmp_path, caplog):
    with fake_openai(reply=says) as server:
        server.fail = lambda number: setattr(server, "fingerprint", "v1") if number == 9 else None
        with pytest.raises(RunError, match="now returns .* Set config.remote.drift to 'log'"):
            run(config_of(server.place), tmp_path)
        assert weights(tmp_path)[0] == 2
        with caplog.at_level(logging.WARNING):
            rows = run(config_of(server.place, **{"remote.drift": "log"}), tmp_path)
        assert [row["step"] for row in rows] == [1, 2, 3] and "now returns" in caplog.text


@pytest.mark.nightly
def test_a_run_that_was_frozen_plays_in_another(tmp_path):
    first = tiny_task.get_config("grpo")
    first.steps = 2
    validate.check(first)
    run(first, tmp_path / "first")
    config = config_of(str(tmp_path / "first"))
    assert config.agents.editor == "editor" and config.policies.editor.frozen
    assert config.policies.editor.model.init_from == str(tmp_path / "first")
    rows = run(config, tmp_path / "second")
    assert rows[-1]["completions_trained"] == 8 and rows[-1]["episodes/failed"] == 0


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["policy", "endpoint", "rule"])
def test_a_judge_rewards_a_run(kind, tmp_path):
    config = tiny_task.get_config("grpo+dataset")
    lines = [{"prompt": f"{i} + {i}?", "completion": str(2 * i)} for i in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config.task.params = dict(data=str(tmp_path / "data.jsonl"), completion="{completion}")
    with fake_openai(reply=lambda body: "Verdict: A") as server:
        config.judge.name = {"policy": "judge", "endpoint": server.place, "rule": "rule"}[kind]
        if kind == "policy":
            config.policies.judge = defaults.policy(frozen=True)
        validate.check(config)
        if kind == "policy":  # an untrained judge replies nonsense
            with pytest.raises(RunError, match="all episodes .* replied without a verdict in both orders"):
                run(config, tmp_path / "run")
            return
        rows = run(config, tmp_path / "run")
    assert rows[-1]["episodes/failed"] == 0 and rows[-1]["success"] < 1
    assert rows[-1]["task/judge_p"] == (0.5 if kind == "endpoint" else 0.0)
    assert rows[-1]["task/judge_flipped"] == (kind == "endpoint")
    assert not [name for name in rows[-1] if explain(name) is None]


def test_an_endpoint_that_cannot_be_used_is_a_line_at_once(tmp_path, capsys, own_console):
    with fake_openai(served=("other",)) as server:
        command = ["launch.py", "--config=tests/marl_jax/tiny_task.py:grpo", f"--workdir={tmp_path}"]
        begin = time.monotonic()
        assert cli.main([*command, f"--config.agents.editor={server.place}"]) == 1
        expected = f"launch.py: config.agents.editor is '{server.place}', but {server.url} does not serve 'm'; "
        assert capsys.readouterr().err.splitlines()[-1].startswith(expected)
        assert time.monotonic() - begin < 30 and not server.asked


REFUSED = [
    ({"agents.editor": "http://h/v1"}, "must be http://HOST:PORT/v1#MODEL"),
    ({"agents.editor": "http://me:secret@h/v1#m"}, "must be http://HOST:PORT/v1#MODEL"),
    ({"agents.editor@1": "http://h/v1#m"}, "must have policies only, one bot or one remote model"),
    ({"remote.max_cost": 1.0}, "price_in and price_out are 0"),
    ({"judge.name": "rule"}, "must be '' with task.name 'plain'"),
]


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=range(len(REFUSED)))
def test_combinations_that_cannot_work_are_refused(changes, message):
    config = tiny_task.get_config("grpo")
    overrides.apply(config, changes)
    with pytest.raises(ConfigError) as error:
        validate.check(config)
    assert message in str(error.value)


@pytest.mark.quick
def test_flags_put_remote_and_frozen_models_into_seats():
    command = ["launch.py", "--config=experiments/negotiation.py:multi_learning"]
    parsed = flags.parse([*command, "--config.agents.partner=http://127.0.0.1:8000/v1#main"], ("train",))
    assert parsed.config.agents.to_dict() == {"learner": "learner", "partner": "http://127.0.0.1:8000/v1#main"}
    assert list(parsed.config.policies) == ["learner"] and "removed" in parsed.warnings[0]
    validate.check(parsed.config)
    parsed = flags.parse([*command, "--config.agents.partner=smollm2-135m"], ("train",))
    partner = parsed.config.policies.partner
    assert partner.frozen and partner.model.name == "smollm2-135m" and not partner.model.shape
    validate.check(parsed.config)
    parsed = flags.parse([*command, "--config.agents.partner=smollm3"], ("train",))
    with pytest.raises(ConfigError, match="a run folder, a registered model"):
        validate.check(parsed.config)


@pytest.mark.quick
def test_judges_and_remote_agents_need_a_task_that_has_them():
    for judge, message in (
        ("main", "must be 'rule', the URL of a reward server, URL#MODEL or a frozen policy: none"),
        ("http://h/v1?x#m", "must be http://HOST:PORT/v1#MODEL"),
        ("http://h?x", "url is"),
    ):
        config = tiny_task.get_config("grpo+story")
        config.task.params = {}
        overrides.apply(config, {"judge.name": judge})
        with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as error:
            validate.check(config)
    config = tiny_task.get_config("grpo+negotiation")
    config.task.params = {}
    overrides.apply(config, {"judge": {"name": "rule", "criterion": "beauty"}})
    with pytest.raises(ConfigError) as error:
        validate.check(config)
    assert "must be one of: fairness" in str(error.value) and "'negotiation': partner" in str(error.value)
    config = tiny_run.get_config()
    overrides.apply(config, {"agents.seat_0": "http://h/v1#m", "judge.name": "rule"})
    with pytest.raises(ConfigError, match="games are compiled and cannot train with remote models") as error:
        validate.check(config)
    assert "only tasks use it" in str(error.value)
