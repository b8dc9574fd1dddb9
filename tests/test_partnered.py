"""Experiments with context agents: valid forms at equal budgets, and small runs from end to end."""

import pytest

from configs import partnered
from experiments import debugging, negotiation, retrieval, story
from experiments.tables import partners, preference
from marl_jax.schema import validate

EXPERIMENTS = (negotiation, debugging, story, retrieval)


@pytest.mark.parametrize("model", ["", "+qwen2.5-coder-0.5b"])
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda module: module.__name__)
def test_every_form_is_valid_and_has_the_same_budget(experiment, model):
    room, completions = set(), preference.COMPLETIONS[experiment.__name__.rpartition(".")[2]]
    for form in partnered.FORMS:
        config = experiment.get_config(form + model)
        validate.check(config)
        room.add(config.task.n_episodes * completions[form != "single"])
    assert room == {partnered.ROOM if model else partnered.SMALL_ROOM}
    assert set(experiment.get_config("multi_learning" + model).policies) == set(experiment.SEATS)
    with pytest.raises(ValueError, match="form is 'duo', but must be one of: prompt, single, multi_fixed"):
        experiment.get_config("duo")


RUNS = [
    (negotiation, "multi_switch"), (negotiation, "multi_learning"), (debugging, "multi_learning"),
    (story, "multi_switch"), (retrieval, "multi_learning"), (retrieval, "multi_switch"),
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize(("experiment", "form"), RUNS)
def test_a_small_run_from_end_to_end(experiment, form, tmp_path, monkeypatch):
    """Let the texts of the byte model be offers, programs and sentences, so that episodes differ in their rewards."""
    from envs.tasks.debugging import task as bugs
    from envs.tasks.negotiation import messages
    from marl_jax.modes import train
    from marl_jax.running.metrics import read_json_lines

    read, program = messages.read_message, bugs.read_program
    offer = "OFFER book={}\n{}"
    monkeypatch.setattr(messages, "read_message", lambda text, *r: read(offer.format(len(set(text)) % 2, text), *r))
    monkeypatch.setattr(bugs, "read_program", lambda text: program("```python\nx = 1\n```" * (len(set(text)) % 2)))
    config = experiment.get_config(form)
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.steps, config.mesh.data = 2, 1
    config.algo.update(dict(group_size=2, minibatches=1, guard="off"))
    config.task.update(dict(n_episodes=4, max_num_seqs=4))
    config.eval.update(dict(every=2, games=10))
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    if experiment is debugging:
        config.task.params.sandbox = "process"  # the programs are harmless
    switching = form == "multi_switch"
    if switching:
        config.task.params.switch_at = (1,)
    validate.check(config)
    train.train(config, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["episodes/finished"] for row in rows] == [4, 4]
    first, second = ({name for name in row if "success_vs_" in name} for row in rows)
    assert (first != second) == switching or experiment is debugging
    text = partners.page([tmp_path / "run"], None, 1)
    assert "Payoff by checkpoint and partner" in text and ("Switches" in text) == switching
