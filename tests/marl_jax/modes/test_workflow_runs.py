"""Complete runs on a workflow in the config: training, the drawing in the report, and overrides."""

import base64

import pytest
from ml_collections import ConfigDict

from envs.tasks import TASKS
from envs.tasks.dataset_task import dataset_task
from envs.tasks.workflow.draw import draw
from envs.tasks.workflow.reading import read
from marl_jax.errors import ConfigError
from marl_jax.modes import report, train
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import flags, saved, validate
from tests.marl_jax import tiny_task
from tests.marl_jax.tiny_tasks import small_bytes

WORKFLOW = {
    "start": "draft",
    "max_steps": 3,
    "nodes": {
        "draft": {
            "together": [
                {"role": "ann", "prompt": "{topic}", "system": "Write.", "rewards": ["plain"]},
                {"role": "bob", "prompt": "{topic}", "rewards": ["plain"]},
            ],
            "next": "review",
        },
        "review": {
            "role": "critic", "prompt": "{ann} or {bob}?", "rewards": ["plain"],
            "next": [{"to": "end", "when": {"critic": "[a-m]"}}, "review"],
        },
    },
}  # fmt: skip


async def plain(completion):
    """Reward that can be learned, computed during the episode."""
    return small_bytes(completion)


@pytest.fixture
def config(monkeypatch):
    """A run of two steps with a workflow in the config; the task was registered with another one."""
    TASKS.names()
    monkeypatch.setattr(TASKS, "_entries", dict(TASKS._entries))
    TASKS.add("team", dataset_task([{"topic": f"topic {i}"} for i in range(8)], plain, prompt="{topic}"))

    def make(algorithm):
        config = tiny_task.get_config(f"{algorithm}+team")
        config.task.params = ConfigDict({"workflow": WORKFLOW})
        config.steps, config.task.n_episodes = 2, 2
        return config

    return make


def test_a_workflow_of_the_config_is_trained_and_drawn(config, tmp_path):
    """AT-GRPO is trained on the workflow of solver and checker in `test_task_runs.py`."""
    config = config("ppo")
    validate.check(config)
    train.train(config, tmp_path)
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["episodes/finished"] == 2 and row["completions_trained"] == row["completions"] >= 2 * 3
        assert row["logprob_diff"] < 1e-5 and row["grad_norm"] > 1e-4
    drawing = (tmp_path / "workflow.svg").read_text()
    assert drawing == draw(read(saved.read(tmp_path).task.params.to_dict()["workflow"])) == draw(read(WORKFLOW))
    page = report.main(tmp_path).read_text()
    assert f"base64,{base64.b64encode(drawing.encode()).decode()}" in page and "<h2>Workflow</h2>" in page


def test_at_grpo_needs_something_to_compare_candidates_by(config):
    config = config("at_grpo")
    review = config.task.params.workflow.nodes.review
    review.rewards = None
    with pytest.raises(ConfigError, match="'critic' at 'review' has no rewards to compare candidates by"):
        validate.check(config)
    review.rewards = []
    validate.check(config)


def test_parts_of_a_workflow_are_fields_of_the_command_line(config, tmp_path):
    base = config("grpo")
    flags.set_open_fields(base, {
        "task.params.workflow.max_steps": "5", "task.params.workflow.nodes.review.prompt": "Is {bob} good?",
    })  # fmt: skip
    workflow = TASKS.get("team")(**base.task.params.to_dict()).graph
    assert workflow.max_steps == 5 and workflow.nodes["review"].steps[0].prompt == "Is {bob} good?"
    flags.set_open_fields(base, {"task.params.workflow.start": "reveiw"})
    with pytest.raises(
        ConfigError, match=r"config.task.params: the start leads to 'reveiw', but must lead to one of: draft, review"
    ):
        validate.check(base)
