"""Separate models for separate roles: each has its own tokens, completions and samples."""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import models
from marl_jax import setup as setups
from marl_jax.agents import scoring
from marl_jax.errors import ConfigError
from marl_jax.learning.learn_step import all_weights, learn_step
from marl_jax.learning.optimizer import make_optimizer
from marl_jax.learning.update import new_train_state, update_active_rows
from marl_jax.modes import evaluate, export, play, train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from marl_jax.setup.run_fingerprint import run_fingerprint
from marl_jax.setup.train_programs import resumed, saved
from marl_jax.setup.weights import restore_weights
from models.weights.load import load
from tests.marl_jax.tiny_engine import quick_jit

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_compilation")]


def start(config):
    """Return setup, optimizer and train states of a config."""
    validate.check(config)
    setup = setups.make(config)
    optimizer = make_optimizer(config.optim, config.steps, 1)
    with jax.set_mesh(setup.mesh):
        return (
            setup,
            optimizer,
            {backbone.name: new_train_state(*backbone.weights_at_start(), optimizer) for backbone in setup.backbones},
        )


def sampled(setup, train_states):
    """Return the samples of one rollout."""
    rollout, params = setup.rollout, all_weights(train_states)
    with jax.set_mesh(setup.mesh):
        return quick_jit(rollout.__call__)(params, rollout.init(jax.random.key(0), params), jax.random.key(1))[0]


@pytest.fixture(scope="module")
def team(team_config):
    """Return setup, optimizer, train states and samples of one step of AT-GRPO."""
    setup, optimizer, train_states = start(team_config())
    samples = sampled(setup, train_states)
    return setup, optimizer, train_states, jax.device_get(samples)


def test_models_differ_in_family_shape_and_tokenizer(team):
    backbones = {backbone.name: backbone for backbone in team[0].backbones}
    planner, executor = backbones["planner"], backbones["executor"]
    assert planner.model.cfg.family != executor.model.cfg.family
    assert planner.model.cfg.d_model != executor.model.cfg.d_model
    assert planner.tokenizer.vocab_size != executor.tokenizer.vocab_size
    assert len(planner.tokenizer.encode("E:")) > len(executor.tokenizer.encode("E:"))


def test_every_seat_reads_and_writes_in_the_tokens_of_its_model(team):
    setup, _, _, samples = team
    backbones = {backbone.name: backbone for backbone in setup.backbones}
    answers, width = set(), samples.width // samples.n_completions
    for i, k in np.ndindex(samples.completion_lengths.shape):
        who = ("planner", "executor")[samples.seat[i, k]]
        assert setup.team.policies[samples.policy[i]] == who
        tokenizer = backbones[who].tokenizer
        text = tokenizer.decode(samples.tokens[i, : samples.context_len[i, k]].tolist())
        assert text.endswith(who[0].upper() + ":"), text
        answer = samples.targets[i, k * width :][: samples.completion_lengths[i, k]].tolist()
        assert tokenizer.decode(answer) == "udlr"[samples.action[i, k]]
        answers.add((who, answer[0]))
    assert len({token for _, token in answers}) == len(answers) > 4  # the same four names with other ids


def test_what_the_sampler_reports_is_what_each_learner_computes(team):
    setup, _, train_states, samples = team
    for backbone in setup.backbones:
        own = setup.team.own(samples, backbone.number)
        mine = np.asarray(own.loss_weights) > 0
        np.testing.assert_array_equal(mine, samples.seat == ["planner", "executor"].index(backbone.name))
        assert int(own.tokens.max()) < backbone.model.cfg.vocab_size and int(own.targets.max()) < 260
        assert not np.asarray(own.tokens)[~mine[:, 0]].any() and not np.asarray(own.targets)[~mine[:, 0]].any()
        score = quick_jit(functools.partial(scoring.score, backbone.policy))
        logps = score(train_states[backbone.name].weights, own).logps
        tokens = mine[:, :1] & (np.asarray(own.completion_of) >= 0)
        np.testing.assert_allclose(logps[tokens], own.logps[tokens], atol=1e-5)
        assert np.std(np.asarray(own.logps)[tokens]) > 1e-3


@pytest.mark.nightly
def test_samples_of_one_agent_change_its_own_model_only(team):
    setup, optimizer, train_states, samples = team
    learn = quick_jit(functools.partial(learn_step, setup, optimizer))
    kept = {}
    for name, keeps in {"both": (1, 1), "planner": (1, 0), "executor": (0, 1)}.items():
        weights = samples.loss_weights * np.asarray(keeps, np.float32)[samples.seat]
        with jax.set_mesh(setup.mesh):
            learnt, metrics = learn(train_states, samples.replace(loss_weights=weights), jax.random.key(2))
        kept[name] = jax.device_get({backbone: train_state.trained for backbone, train_state in learnt.items()})
        assert float(metrics["planner/logprob_diff"]) < 1e-4 and float(metrics["executor/logprob_diff"]) < 1e-4
    before = jax.device_get({backbone: train_state.trained for backbone, train_state in train_states.items()})
    equal = lambda a, b: all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))  # noqa: E731
    for own, other in (("planner", "executor"), ("executor", "planner")):
        assert not equal(kept[own][own]["model"], before[own]["model"])
        assert equal(kept[own][other], before[other])  # the other model does not change, bit for bit
        assert equal(kept[own][own], kept["both"][own])  # and the other model's completions have no effect here
    answers = {name: int(metrics[f"{name}completions_trained"]) for name in ("", "executor/", "planner/")}
    assert answers[""] == answers["executor/"] > 0 == answers["planner/"]


def test_rows_of_others_are_left_out_of_the_update(team):
    """Each model has half of the rows, so updating on these equals updating on all rows."""
    setup, optimizer, train_states, samples = team
    n = samples.n
    assert [setup.max_active_rows(backbone, n, setup.config.algo) for backbone in setup.backbones] == [n // 2] * 2
    taken = []

    def update(train_state, rows, key):
        taken.append(rows.n)
        return jnp.sum(rows.loss_weights), jnp.sum(rows.action * rows.loss_weights)

    rows = setup.team.own(samples, 0)
    few = update_active_rows(update, None, rows, None, n // 2)
    assert sorted(taken) == [n // 2, n]  # both branches are in the program
    expected = update(None, rows, None)
    np.testing.assert_array_equal(few, expected)
    more = rows.replace(loss_weights=jnp.ones_like(rows.loss_weights))  # too many for the short branch
    np.testing.assert_array_equal(update_active_rows(update, None, more, None, n // 2), update(None, more, None))


@pytest.mark.nightly
def test_rows_of_others_are_harmless_behind_long_rules(team_config):
    """The rules are prefilled once and left out of rows; rows of the other model must not start before theirs."""
    config = team_config()
    config.env.text = "full"
    config.algo.filter_zero_std_groups = True  # leaves room among the trained rows for those of the other model
    setup, optimizer, train_states = start(config)
    assert all(backbone.policy.prefix for backbone in setup.backbones)
    samples = sampled(setup, train_states)
    with jax.set_mesh(setup.mesh):
        learn = quick_jit(functools.partial(learn_step, setup, optimizer))
        _, metrics = learn(train_states, samples, jax.random.key(2))
    for backbone in setup.backbones:
        assert backbone.row < len(backbone.policy.prefix), "or the test cannot fail"
        own = setup.team.own(samples, backbone.number)
        assert int(jnp.min(own.positions)) == len(backbone.policy.prefix)
        assert int(metrics[f"{backbone.name}/skipped"]) == 0 and np.isfinite(metrics[f"{backbone.name}/grad_norm"])


# Complete runs


@pytest.fixture(scope="module")
def finished(team_config, tmp_path_factory):
    """Return config and folder of a run of two steps."""
    config = team_config()
    workdir = tmp_path_factory.mktemp("team") / "run"
    train.train(config, workdir)
    return config, workdir


@pytest.mark.nightly
def test_a_run_evaluates_also_with_roles_swapped_and_writes_games(finished):
    config, workdir = finished
    rows = read_json_lines(workdir / "eval.jsonl")
    last = {row["opponent"]: row for row in rows if row["step"] == 2}
    assert list(last) == ["self", "swapped"]
    for row in last.values():
        assert row["success_low"] <= row["success"] <= row["success_high"]
    metrics = read_json_lines(workdir / "metrics.jsonl")
    assert {"policy_loss", "planner/policy_loss", "executor/grad_norm", "truncated_completions"} <= metrics[0].keys()
    game = read_json_lines(workdir / "games.jsonl")[0]
    assert game["players"] == ["tiny planner", "smollm2-135m executor"]
    for turn, move in enumerate(game["moves"]):
        assert move["player"] == turn % 2 and move["prompt"].endswith("PE"[turn % 2] + ":")
        assert move["answer"] in "udlr" and move["board"] and "<svg" in move["svg"]
    assert (workdir / "report.html").stat().st_size > 1000


@pytest.mark.nightly
def test_mode_eval_reads_the_checkpoint_and_swaps(finished):
    config, workdir = finished
    rows = {row["opponent"]: row for row in evaluate.main(config, workdir)}
    assert {"self", "swapped", "random alone"} <= rows.keys()
    newest = {row["opponent"]: row for row in read_json_lines(workdir / "eval.jsonl") if row["step"] == 2}
    assert rows["self"]["score"] == newest["self"]["score"] and rows["swapped"]["score"] == newest["swapped"]["score"]


@pytest.mark.nightly
def test_every_policy_is_exported_with_its_own_shape_and_tokenizer(finished):
    config, workdir = finished
    setup = setups.make(config)
    _, weights = restore_weights(setup, workdir)
    assert [path.name for path in export.main(config, workdir)] == ["executor", "planner"]
    for backbone in setup.backbones:
        cfg, params = load(workdir / "export" / backbone.name)[:2]
        assert cfg.d_model == backbone.model.cfg.d_model and cfg.vocab_size == backbone.model.cfg.vocab_size
        jax.tree.map(np.testing.assert_array_equal, params, weights[backbone.name]["model"])
    assert (workdir / "export" / "executor" / "tokenizer.json").is_file()


@pytest.mark.nightly
def test_the_team_can_be_played_with(finished, monkeypatch):
    config, workdir = finished
    said = io.StringIO("prompt\nu\nquit\n")
    monkeypatch.setattr("sys.stdin", said)
    monkeypatch.setattr("sys.stdout", shown := io.StringIO())
    config = config.copy_and_resolve_references()
    config.play.seat = 0
    play.main(config, workdir)
    assert "P:" in shown.getvalue() and "executor (run): " in shown.getvalue()


@pytest.mark.nightly
def test_a_checkpoint_holds_what_both_models_learnt(finished):
    config, workdir = finished
    setup, _, train_states = start(config)
    games = setup.rollout.init(jax.random.key(0), all_weights(train_states))
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore(saved(train_states, games), run=run_fingerprint(setup))
    checkpoints.close()
    again, _ = resumed(train_states, restored.state)
    assert restored.step == 2 and set(restored.state["trained"]) == {"planner", "executor"}
    for name, train_state in again.items():
        same = jax.tree.map(np.array_equal, train_state.trained["model"], train_states[name].trained["model"])
        assert not all(jax.tree.leaves(same)), name


@pytest.mark.nightly_for("dapo", "grpo")
@pytest.mark.parametrize("algo", ["ppo", "grpo", "dapo"])
def test_a_step_of_every_algorithm_fits_together(team_config, algo):
    """The step is traced, not compiled."""
    config = team_config("grpo" if algo == "dapo" else algo)
    if algo == "dapo":
        config.algo.overlong = "penalty"
        config.rollout.update(dict(completion="free", max_new_tokens=4))
    validate.check(config)
    setup = setups.make(config)
    key = jax.random.key(0)
    with jax.set_mesh(setup.mesh):
        rollout, optimizer = setup.rollout, make_optimizer(config.optim, config.steps, 1)
        new = lambda t, f: new_train_state(t, f, optimizer)  # noqa: E731
        train_states = {backbone.name: jax.eval_shape(new, *backbone.abstract()) for backbone in setup.backbones}
        params = all_weights(train_states)
        samples, *_ = jax.eval_shape(rollout.__call__, params, jax.eval_shape(rollout.init, key, params), key)
        learn = functools.partial(learn_step, setup, optimizer)
        learnt, metrics = jax.eval_shape(learn, train_states, samples, key)
    assert jax.tree.structure(learnt) == jax.tree.structure(train_states)
    assert {"planner/loss", "executor/loss", "loss", "skipped_in_a_row"} <= metrics.keys()


# Sharing


@pytest.mark.nightly
def test_policies_without_a_model_of_their_own_share_one_or_copy_it(team_config):
    config = team_config()
    config.policies.executor.model = {}
    copies = setups.make(config)
    assert [backbone.policies for backbone in copies.backbones] == [("executor",), ("planner",)]
    first, second = (backbone.weights_at_start()[0]["model"]["embed"] for backbone in copies.backbones)
    assert first.shape == second.shape and not np.array_equal(first, second)
    config.model.lora.rank = 2
    assert [backbone.policies for backbone in setups.make(config).backbones] == [("executor", "planner")]
    config.policies.executor.model = models.tiny()
    assert [backbone.policies for backbone in setups.make(config).backbones] == [("executor",), ("planner",)]


@pytest.mark.nightly
def test_a_frozen_model_is_only_read(team_config, other_model, tmp_path, team):
    config = team_config(executor=dict(frozen=True))
    setup, optimizer, train_states = start(config)
    assert [backbone.name for backbone in setup.trained_backbones] == ["planner"]
    assert not train_states["executor"].trained
    weights = all_weights(train_states)
    snapshot = setup.team.snapshot(weights)  # a pool of past policies has no copies of frozen weights
    assert snapshot["executor"] == {} and set(snapshot["planner"]) == {"model"}
    assert setup.team.with_snapshot(weights, snapshot)["executor"]["model"] is weights["executor"]["model"]
    samples = team[3].replace(loss_weights=team[3].loss_weights * (team[3].seat == 0))
    with jax.set_mesh(setup.mesh):
        learnt, _ = quick_jit(functools.partial(learn_step, setup, optimizer))(train_states, samples, jax.random.key(0))
    as_it_came = load(other_model)[1]
    jax.tree.map(np.testing.assert_array_equal, learnt["executor"].weights, {"model": as_it_came})
    same = jax.tree.map(np.array_equal, learnt["planner"].trained["model"], train_states["planner"].trained["model"])
    assert not all(jax.tree.leaves(same))

    checkpoints = Checkpoints(tmp_path / "frozen")
    checkpoints.save(1, saved(learnt, jnp.zeros(3)), {})
    checkpoints.close()
    _, weights = restore_weights(setup, tmp_path / "frozen")
    jax.tree.map(np.testing.assert_array_equal, weights["executor"], {"model": as_it_came})
    jax.tree.map(np.testing.assert_array_equal, weights["planner"]["model"], learnt["planner"].trained["model"])


def test_tokenizers_must_agree_where_one_model_reads_the_prompts_of_all(team_config):
    config = team_config("ppo")
    config.algo.critic = "central"
    with pytest.raises(
        ConfigError, match="config.algo.critic is 'central' with policies that have different tokenizers"
    ):
        setups.make(config)
    config.policies.executor.model = {}
    setups.make(config)


def test_what_works_with_one_model_says_so(team_config):
    setup = setups.make(team_config())
    with pytest.raises(ConfigError, match=r"different models \(executor \(smollm2-135m\), planner \(tiny\)\)"):
        _ = setup.backbone
