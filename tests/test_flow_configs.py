"""Experiments with written problems and workflows: valid forms at equal budgets, and small runs from end to end."""

import pytest

from configs import flows, proposer
from experiments import design as design_experiment
from experiments import proposer as proposer_experiment
from experiments import workflow_search as search_experiment
from marl_jax.errors import ConfigError
from marl_jax.schema import validate

FAKE = "```python\ndef f(x):\n    return x * {}\n```\n```input\n{}\n```"


@pytest.mark.parametrize("model", ["", "+qwen2.5-coder-1.5b"])
def test_proposers_are_valid_and_have_the_same_budget(model):
    room = set()
    for form in proposer.FORMS:
        config = proposer_experiment.get_config(form + model)
        validate.check(config)
        room.add(config.task.n_episodes * proposer.completions_of(config))
    assert room == {proposer.ROOM if model else proposer.SMALL_ROOM}
    assert proposer_experiment.get_config("frozen_proposer" + model).policies.proposer.frozen
    assert not proposer_experiment.get_config("per_role" + model).policies.proposer.frozen
    with pytest.raises(ValueError, match="form is 'duo', but must be one of: prompt, fixed, frozen_proposer, shared"):
        proposer_experiment.get_config("duo")


@pytest.mark.parametrize("model", ["", "+qwen2.5-coder-1.5b"])
def test_designers_and_searches_are_valid(model):
    for form in flows.DESIGN_FORMS:
        config = design_experiment.get_config(form + model)
        validate.check(config)
        assert config.algo.seat_block == (flows.BLOCK if form in ("shared", "per_role") else 0)
    for form in flows.SEARCH_FORMS:
        validate.check(search_experiment.get_config(form + model))
    with pytest.raises(ValueError, match="form is 'duo', but must be one of: prompt, fixed, shared, per_role"):
        design_experiment.get_config("duo")


def test_blocks_of_seats_need_two_seats_that_learn():
    from marl_jax import setup

    config = design_experiment.get_config("per_role")
    config.policies.executor.frozen = True
    with pytest.raises(ConfigError, match="seat_block is 10, but must be 0 unless .* learn; these do: designer"):
        _ = setup.make(shrink(config)).rollout
    config = search_experiment.get_config()
    config.task.name, config.env.name, config.algo.seat_block = "", "tic_tac_toe", 3
    with pytest.raises(ConfigError, match="seat_block is 3 with env.name 'tic_tac_toe', but must be 0 for games"):
        validate.check(config)


def shrink(config):
    """Make a run of two steps small."""
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.steps, config.mesh.data = 2, 1
    config.algo.update(dict(group_size=2, minibatches=1, guard="off"))
    config.task.update(dict(n_episodes=2, max_num_seqs=4))
    config.eval.update(dict(every=2, games=4))
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    validate.check(config)
    return config


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["shared", "frozen_proposer", "per_role"])
def test_a_small_run_with_a_proposer(form, tmp_path, monkeypatch):
    """Let the bytes of the model be programs and predictions, so that episodes differ in their rewards."""
    from envs.tasks.propose import task
    from marl_jax.modes import train
    from marl_jax.running.metrics import read_json_lines

    async def checked(self, k, reply):
        text = FAKE.format(len(set(reply.text)), len(reply.text)) if len(set(reply.text)) % 3 else ""
        return task.programs.checked(task.shared_sandbox("process").settings, text, 1.0)

    async def judged(ask, row, reply, sandbox):
        right = [sum(one.tokens) % 2 == 0 for one in reply.replies]
        for one, good in zip(reply.replies, right, strict=True):
            one.reward(agent=float(good))
        return [(good, None) for good in right]

    monkeypatch.setattr(task._Episode, "_checked", checked)
    monkeypatch.setattr(task, "judge_predictions", judged)
    config = proposer_experiment.get_config(form)
    config.task.params.sandbox = "process"  # the programs are harmless
    train.train(shrink(config), tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["episodes/finished"] for row in rows] == [2, 2]
    assert any(row["task/valid"] for row in rows) and any(row["informative_share"] for row in rows)
    assert all("task/invalid_no_program" in row for row in rows)


@pytest.mark.nightly
def test_a_small_run_with_a_designer_trained_in_turn(tmp_path, monkeypatch):
    """Let every other text of the byte model be a design, so that designs differ in their rewards."""
    from envs.tasks.design import execution, task
    from envs.tasks.workflow.designs import SINGLE, DesignError
    from marl_jax.modes import train
    from marl_jax.running.metrics import read_json_lines

    def read_json(text):
        if len(text) % 2:
            raise DesignError("no_json", "odd")
        return SINGLE

    monkeypatch.setattr(task, "read_json", read_json)
    monkeypatch.setattr(execution, "grade", grade_by_length)
    config = shrink(design_experiment.get_config("per_role"))
    config.algo.seat_block, config.task.params.executions = 1, 2
    train.train(config, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["train_seat"] for row in rows] == [0, 1]
    assert all(0 < row["task/accepted"] < 1 for row in rows)


def grade_by_length(dataset, text, answer):
    """Call completions of even length right."""
    return {"right": len(text) % 2 == 0, "answer": str(len(text))}


@pytest.mark.nightly
def test_a_small_search_continues(tmp_path):
    from marl_jax.evaluation.workflow_search import FILE
    from marl_jax.modes import search

    config = shrink(search_experiment.get_config())
    config.search.update(dict(rounds=2, examples=4))
    text = search.main(config, tmp_path / "run")
    lines = (tmp_path / "run" / FILE).read_text()
    assert "| search by policy |" in text and "| search by random |" in text
    (tmp_path / "run" / FILE).write_text("".join(lines.splitlines(keepends=True)[:3]))
    assert search.main(config, tmp_path / "run") == text
    assert (tmp_path / "run" / FILE).read_text() == lines
    config.search.editors = ("nobody",)
    config.eval.temperature = 0.0
    with pytest.raises(ConfigError, match=r"editors has 'nobody'(.|\n)*eval.temperature is 0, but must be > 0"):
        search.main(config, tmp_path / "other")
    config = shrink(proposer_experiment.get_config())
    config.eval.temperature = 1.0
    with pytest.raises(ConfigError, match="task.name is 'propose', but must be 'workflow' for --mode=search"):
        search.main(config, tmp_path / "third")
