"""Warm starts: what a bot shows, learning from it, and runs that begin where that ended."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.plan_path import levels
from marl_jax import setup as setups
from marl_jax.agents import scoring
from marl_jax.algorithms import sft
from marl_jax.errors import ConfigError, RunError
from marl_jax.learning.learn_step import all_weights, learn_step, optimizer_for
from marl_jax.learning.update import Scheduled
from marl_jax.modes import train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from marl_jax.setup.train_programs import at_start
from tests.marl_jax import tiny_puzzle

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiled_once")]


def state(workdir):
    """Everything in a run's newest checkpoint."""
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored


def get_config():
    """Planner and executor imitate the solver."""
    return tiny_puzzle.get_config("roles_sft")


def shown(config, turns=24, **changes):
    """(setup, program, first games, samples, what ended, games after it), samples of answers as [R, B, …]."""
    setup = setups.make(config)
    program = dataclasses.replace(setup.rollout, turns=turns, **changes)
    first = jax.jit(program.fresh_games)(jax.random.key(1))
    samples, finished, after = jax.device_get(jax.jit(program.play)({}, first, jax.random.key(2)))
    return setup, program, first, samples, finished, after


def in_time(samples, x):
    """[N, 1, …] or [N, …] as [R, B, …]."""
    x = x[:, 0] if x.shape[:2] == samples.completion_lengths.shape else x
    return x.reshape(*samples.completion_at.shape, *x.shape[1:])


@pytest.fixture(scope="module")
def perfect():
    return shown(get_config(), noise=0.0)


def test_the_bot_solves_every_level_in_the_fewest_moves(perfect):
    _, _, _, samples, finished, _ = perfect
    assert finished.ended.sum() > 20
    np.testing.assert_allclose(finished.total.team[finished.ended], 1.5)  # goal and shortest way
    assert (samples.loss_weights == 1).all() and (samples.action >= 0).all()


def test_the_executor_follows_and_reads_the_proposal(perfect):
    setup, _, first, samples, _, _ = perfect
    action, seat, tokens, context_len = (
        in_time(samples, getattr(samples, x)) for x in ("action", "seat", "tokens", "context_len")
    )
    planner, executor = action[0::2], action[1::2]
    assert (seat[0::2] == 0).all() and (seat[1::2] == 1).all()
    np.testing.assert_array_equal(planner, executor)
    backbone = setup.backbone
    for row in range(3):
        text = backbone.prompt.opening_text(jax.tree.map(lambda x, row=row: x[row], first.state), 0)
        read = tokens[0, row, : context_len[0, row]]
        assert backbone.tokenizer.decode(read.tolist()) == text  # the very prompt of a rollout
        proposal = "udlr"[action[0, row]]
        heard = backbone.tokenizer.decode(tokens[1, row, : context_len[1, row]].tolist())
        assert heard.endswith(f" {proposal}E:")


def test_no_held_out_level_is_shown_in_any_form(perfect):
    setup, program, _, _, _, after = perfect
    test = set(levels.keys(setup.game.held_out().game.levels.arrays))
    seen = after.state.inner
    assert not set(levels.keys({"distance": seen.distance, "start": seen.start})) & test
    assert not set(levels.keys(program.game.game.levels.arrays)) & test


def test_noise_moves_the_executor_only_and_samples_keep_what_the_bot_would_do():
    _, _, _, samples, finished, _ = shown(get_config(), noise=0.5, turns=40)
    action = in_time(samples, samples.action)
    np.testing.assert_array_equal(action[0::2], action[1::2])
    assert finished.total.team[finished.ended].min() < 1.5  # some ways were longer


@pytest.mark.nightly_for("sokoban-10.0")
@pytest.mark.parametrize("game, solved", [("sokoban", 10.0), ("sudoku", 1.0)])
def test_the_other_puzzles_are_shown_too(game, solved):
    config = get_config()
    params = dict(sokoban=dict(size=5, budget=12), sudoku=dict(empties=(3, 5), budget=8))[game]
    with config.unlocked():
        config.env.params = dict(roles="two", n_train=24, n_test=8, **params)
    config.env.name = game
    config.rollout.unroll_length = 24 if game == "sokoban" else 16
    _, _, _, samples, finished, _ = shown(config, noise=0.0)
    ended = finished.ended
    assert ended.sum() > 5
    np.testing.assert_allclose(finished.total.team[ended], solved)
    assert np.take_along_axis(samples.legal, samples.action[..., None], -1).all()


def test_games_of_two_and_their_bots():
    config = get_config()
    config.env.name = "tic_tac_toe"
    with config.unlocked():
        config.env.params = {}
    _, program, _, samples, finished, _ = shown(config, noise=0.0, turns=18)
    assert type(program.bot).__name__ == "MinimaxBot"
    assert (finished.total.agent[finished.ended] == 0).all()  # minimax draws with itself
    assert set(samples.seat.reshape(-1).tolist()) == {0, 1}


def test_free_answers_are_written_as_they_would_be_sampled():
    config = get_config()
    config.rollout.update(dict(completion="free", max_new_tokens=3))
    setup = setups.make(config)
    free = setup.backbone.policy.answers
    ids, lengths = free.written()
    said = lengths - 1  # without the stop
    legal = jnp.ones((4, 4), bool)
    assert jax.jit(free.parse)(jnp.asarray(ids), jnp.asarray(said), legal).tolist() == [0, 1, 2, 3]
    assert all(ids[a, said[a]] in free.stop_ids for a in range(4))
    config.env.text = "full"
    with pytest.raises(ConfigError, match="max_new_tokens is 3, but must be >= 5"):
        setups.make(config)  # nobody could ever say it


def test_a_policy_that_knows_nothing_pays_the_logarithm_of_its_choices(perfect):
    setup, _, _, samples, _, _ = perfect
    samples = jax.tree.map(jnp.asarray, samples)
    nothing = {"model": jax.tree.map(lambda x: jnp.zeros(x.shape), setup.backbone.abstract()[0]["model"])}
    objective, algo = setup.algorithm.objective, setup.algo

    def loss_of(params):
        scores = scoring.score(setup.backbone.policy, params, samples)
        return objective.loss(samples, objective.loss_weights_for(samples, algo), scores, algo, Scheduled())

    loss, metrics = jax.jit(loss_of)(nothing)
    np.testing.assert_allclose([loss, metrics["probability"]], [np.log(4), 0.25], rtol=1e-5)


@pytest.mark.nightly
def test_demonstrations_are_learnt_by_heart_when_they_are_seen_again_and_again():
    setup = setups.make(get_config())
    optimizer = optimizer_for(setup.config)
    key = jax.random.key(0)
    states, state = at_start(setup, setup.rollout, optimizer, key)
    samples, *_ = jax.jit(setup.rollout.__call__)(all_weights(states), state, key)
    learn, losses = jax.jit(functools.partial(learn_step, setup, optimizer)), []
    for i in range(60):
        states, metrics = learn(states, samples, jax.random.key(i))
        losses.append(float(metrics["loss"]))
    assert losses[0] > 1.2 and losses[-1] < losses[0] / 2


@pytest.mark.nightly
def test_imitation_is_measured_in_games_that_training_never_sees(perfect):
    setup, optimizer = perfect[0], optimizer_for(perfect[0].config)
    imitation, prompt, held_out = sft.SFT.heldout_eval(setup.parts), setup.backbone.prompt, setup.game.held_out()
    openings = {prompt.opening_text(held_out.reset_level(i), 0) for i in range(held_out.n_levels)}
    states, _ = at_start(setup, setup.rollout, optimizer, jax.random.key(0))
    params = all_weights(states)
    answers = jax.device_get(imitation._program(params))
    read = [setup.backbone.tokenizer.decode(np.trim_zeros(row, "b").tolist()) for row in answers.prompts[0]]
    assert set(read) <= openings and len(set(read)) > 3
    found = imitation(params)
    assert (found.name, list(found.counts)) == ("demonstrations", ["accuracy"])  # moves of a puzzle are of one kind
    count = found.counts["accuracy"]
    assert count.total == answers.counts.size
    assert 0 < count.right < count.total and len(set(read)) <= count.distinct <= count.total


# ------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run with all weights: (config, folder)."""
    config = get_config()
    config.eval.every = 4
    workdir = tmp_path_factory.mktemp("sft") / "run"
    train.train(config, workdir)
    return config, workdir


def test_a_run_leaves_what_runs_leave(run):
    config, workdir = run
    rows = read_json_lines(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert {"loss", "probability", "grad_norm", "tokens_per_s"} <= rows[0].keys()
    evals = read_json_lines(workdir / "eval.jsonl")
    found = [(row["step"], row["opponent"]) for row in evals]
    assert found == [(0, "self"), (0, "random alone"), (0, "demonstrations"), (4, "self"), (4, "demonstrations")]
    assert {"accuracy", "accuracy_low", "accuracy_high"} <= evals[-1].keys()
    assert json.loads((workdir / "config.json").read_text())["steps"] == 4 and (workdir / "report.html").exists()


@pytest.mark.nightly
def test_an_interrupted_run_equals_one_that_was_not(run, tmp_path):
    config, workdir = run
    again = tmp_path / "again"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints" / "4")
    train.train(config, again)
    jax.tree.map(np.testing.assert_array_equal, state(workdir).state, state(again).state)
    with pytest.raises(RunError, match="algorithm is 'sft' there and 'at_grpo' here"):
        train.train(tiny_puzzle.get_config(), again)


def starting_from(workdir, form="at_grpo", **lora):
    config = tiny_puzzle.get_config(form)
    config.model.init_from = str(workdir)
    if lora:
        config.model.lora.update(lora)
    validate.check(config)
    return config


@pytest.mark.nightly
def test_a_run_begins_with_its_weights_and_measures_from_there(run, tmp_path):
    _, workdir = run
    config = starting_from(workdir)
    config.algo.kl_coef = 0.1
    config.steps = 2
    backbone = setups.make(config).backbone
    trained, frozen = backbone.weights_at_start()
    expected = state(workdir).state["trained"]["main"]["model"]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(trained["model"]), expected)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(frozen["reference"]), expected)
    train.train(config, tmp_path / "on")
    assert read_json_lines(tmp_path / "on" / "metrics.jsonl")[0]["kl"] < 1e-3  # near the policy it began with
    assert state(tmp_path / "on").meta["run"]["models"]["main"]["init_from"]["step"] == 4
    config.model.init_from = f"{workdir}@2"
    with pytest.raises(RunError, match=r"init_from.seal is .* there and .* here"):
        train.train(config, tmp_path / "on")


def test_roles_begin_with_copies_and_adapters_on_top_of_them(run):
    _, workdir = run
    expected = state(workdir).state["trained"]["main"]["model"]
    apart = setups.make(starting_from(workdir, "at_grpo_apart"))
    assert {backbone.name for backbone in apart.backbones} == {"planner", "executor"}
    for backbone in apart.backbones:
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(backbone.weights_at_start()[0]["model"]), expected)
    trained, frozen = setups.make(starting_from(workdir, "at_grpo_lora")).backbone.weights_at_start()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(frozen["model"]), expected)
    assert all(not x["b"].any() for x in trained["adapters"].values())  # fresh: the policy is that run's


@pytest.mark.nightly
def test_adapters_are_handed_on_to_every_role_and_are_the_reference(tmp_path):
    config = get_config()
    config.model.lora.update(dict(rank=2, alpha=4.0, targets=("q", "v")))
    config.steps, config.optim.warmup = 1, 0
    train.train(config, tmp_path)
    stored = state(tmp_path).state["trained"]["main"]["adapters"]
    roles = starting_from(tmp_path, "at_grpo_lora", rank=2, alpha=4.0, targets=("q", "v"))
    roles.algo.kl_coef = 0.1
    backbone = setups.make(roles).backbone
    trained, frozen = backbone.weights_at_start()
    base = setups.make(config).backbone.weights_at_start()[1]["model"]
    jax.tree.map(np.testing.assert_array_equal, frozen["model"], base)  # a random base is that run's, too
    for name in ("q", "v"):
        for part in ("a", "b"):
            assert trained["adapters"][name][part].shape[1] == 2
            for role in range(2):
                np.testing.assert_array_equal(trained["adapters"][name][part][:, role], stored[name][part][:, 0])
    jax.tree.map(np.testing.assert_array_equal, trained["adapters"], frozen["reference"])
    jax.tree.map(lambda a, b: a.shape == b.shape or pytest.fail("shapes"), (trained, frozen), backbone.abstract())


def test_a_start_that_does_not_fit_is_refused(run, tmp_path):
    _, workdir = run
    config = starting_from(workdir)
    config.model.shape.d_ff = 32
    with pytest.raises(RunError, match=r"does not fit: shape is .*'d_ff': 16.* there and .*'d_ff': 32"):
        setups.make(config)
    config = starting_from(workdir)
    config.model.init_from = f"{workdir}@3"
    with pytest.raises(RunError, match="has no checkpoint of step 3; the step must be one of: 2, 4"):
        setups.make(config)
    config.model.init_from = str(tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match="config.model.init_from is .*nowhere.*, but must be '' or the folder of an existing run"
    ):
        validate.check(config)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(algo__bot="minimax"),
            "config.algo.bot is 'minimax', but must be '' or a bot of plan_path: random",
        ),
        (
            dict(rollout__num_envs=3, rollout__unroll_length=3),
            "config.rollout.num_envs is 3, which with 3 turns each gives 9 rows, but rows must be a multiple of "
            "algo.minibatches x algo.grad_accum_steps = 2; try 2 or 4",
        ),
        (dict(optim__warmup=4), "config.optim.warmup is 4 with steps 4, but must be less than steps"),
        (dict(algo__noise=1.0), "config.algo.noise is 1.0, but must be a number >= 0 and <= 0.9"),
        (dict(opponents__self_play_frac=0.5), "config.opponents has players other than the learner, but"),
        (dict(curriculum__enabled=True), "config.curriculum.enabled is True with algo.name 'sft'"),
    ],
)
def test_refused(changes, message):
    config = get_config()
    for name, value in changes.items():
        group, field = name.split("__")
        config[group][field] = value
    with pytest.raises(ConfigError) as refused:
        validate.check(config)
    assert message in str(refused.value)
