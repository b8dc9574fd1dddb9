"""Run of the task `code` with the embedded model, built-in problems and programs in the sandbox."""

import pytest

from envs.tasks.code import calls, sample, task
from envs.tasks.code.extract import ExtractedProgram
from envs.tasks.sandbox import SandboxUnavailable, shared_sandbox
from experiments import code_generation
from marl_jax.errors import RunError
from marl_jax.modes import train
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from tests.envs.tasks import verifiers

FORMS = ("single", "single_grpo", "roles_prompt", "roles_grpo", "at_grpo_shared", "at_grpo_per_role")


@pytest.mark.nightly
@pytest.mark.long
@pytest.mark.quick
def test_a_run_learns_from_programs_in_the_sandbox(tmp_path, monkeypatch):
    """Replace completions by programs, half of them solutions, because the byte model writes none."""
    try:
        shared_sandbox()
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    solutions = [row["solution"] for row in sample.rows()]

    def read_program(answer):
        return ExtractedProgram("\n".join(solutions[verifiers.number(answer) % 2 :: 2][:4]))

    monkeypatch.setattr(task, "read_program", read_program)
    monkeypatch.setattr(calls, "cases_in", verifiers.cases_by_number)
    config = code_generation.get_config("at_grpo_shared")
    config.steps, config.optim.warmup, config.mesh.data = 2, 0, 1
    config.task.update(dict(n_episodes=2, max_num_seqs=8, max_length=1024))
    config.task.params.turns = 1
    config.algo.update(dict(group_size=4, minibatches=1))
    config.eval.update(dict(every=2, games=2))
    validate.check(config)
    train.train(config, tmp_path)
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2] and all(row["episodes/failed"] == 0 for row in rows)
    assert all(row["task/built"] == 1 and row["task/sandbox_refused"] == 0 for row in rows)
    assert any(0 < row["task/gold_share"] < 1 or row["zero_std_groups"] < 1 for row in rows)
    [*_, last] = read_json_lines(tmp_path / "eval.jsonl")
    assert last["step"] == 2 and last["games"] == 2 and last["failed"] == 0


def test_without_isolation_a_run_ends_at_its_start_and_says_why(tmp_path, monkeypatch):
    def unavailable(mode):
        raise SandboxUnavailable("no namespaces and no Landlock")

    monkeypatch.setattr(task, "shared_sandbox", unavailable)
    config = code_generation.get_config("roles_grpo")
    config.mesh.data = 1
    with pytest.raises(RunError, match="the task code cannot run on this machine: no namespaces and no Landlock"):
        train.train(config, tmp_path)


@pytest.mark.parametrize("model", ["", "+qwen2.5-coder-0.5b", "+qwen3-1.7b", "+qwen3-8b"])
def test_every_form_can_run_and_learns_from_as_many_answers(model):
    configs = {form: code_generation.get_config(form + model) for form in FORMS}
    for config in configs.values():
        validate.check(config)
    room = {
        form: config.task.n_episodes * len(task.Code(**config.task.params.to_dict()).roles) * config.task.params.turns
        * (config.algo.group_size if config.algo.name == "at_grpo" else 1)
        for form, config in configs.items()
    }  # fmt: skip
    assert len(set(room.values())) == 1, room
    assert {config.model.name for config in configs.values()} == {configs["single"].model.name}
    assert set(configs["at_grpo_per_role"].policies) == {"coder", "tester"}
    with pytest.raises(ValueError, match="form is 'duo', but must be one of: single, "):
        code_generation.get_config("duo")
