"""Invalid overrides are rejected before anything is built, in lines that name the field."""

import random
import time

import pytest

from envs.games import pools, registry
from marl_jax import cli
from marl_jax import setup as setups
from marl_jax.errors import ConfigError
from marl_jax.schema import flags, validate
from tests.faults import fuzz
from tests.marl_jax import tiny_run
from tests.marl_jax.schema.test_validate import changed

pytestmark = pytest.mark.nightly

MODES = ("train", "eval", "play", "report", "export", "compile")
TIC_TAC_TOE, PLAN_PATH = "experiments/tic_tac_toe_selfplay.py", "experiments/plan_path.py"


def check(*overrides, config=TIC_TAC_TOE):
    command = flags.parse(["launch.py", f"--config={config}", *(f"--config.{text}" for text in overrides)], MODES)
    validate.check(command.config)


@pytest.mark.parametrize(
    "override, words",
    [
        ("model.shape.rope_theta=-1.0", "config.model.shape: rope_theta is -1.0, but must be "),
        ("model.shape.norm_eps=-1", "config.model.shape: norm_eps is -1, but must be "),
        ("model.shape.head_dim=7", "config.model.shape: head_dim is 7, but must be even"),
        ("model.shape.rope_scaling=3", "config.model.shape: rope_scaling is 3, but must be None or a RopeScaling"),
        ("model.shape.sliding_window=0", "config.model.shape: sliding_window is 0, but must be None or an integer"),
        (f"model.shape.n_layers={2**63}", f"config.model.shape: n_layers is {2**63}, but must be an integer from 1"),
        ("opponents.pool_size=100000000000", "config.opponents.pool_size is 100000000000, but must be an integer"),
        ("curriculum.window=100000000000", "config.curriculum.window is 100000000000, but must be an integer"),
        (f"log.games={2**31 - 1}", f"config.log.games is {2**31 - 1}, but must be an integer from 0 to 16384"),
        (
            "rollout.num_envs=100000000000",
            "config.rollout.num_envs is 100000000000, but must be an integer from 1 to",
        ),
        (f"model.shape.rope_theta=1{'0' * 400}", "config.model.shape"),
        (f"eval.step='{'1' * 5000}'", "must be 'newest', 'best' or a step number"),
        ("=1", "--config. is not a field"),
        ("eval.every=100000000000", "config.eval.every is 100000000000, but must be an integer"),
    ],
)
def test_what_cannot_work_is_refused(override, words):
    with pytest.raises(ConfigError) as caught:
        check(override)
    assert words in str(caught.value)


def test_the_heads_of_gpt2_share_nothing():
    with pytest.raises(ConfigError, match="config.model.shape: n_kv_heads is 1, but must be "):
        check("model.shape.family='gpt2'", "model.shape.n_heads=2", "model.shape.n_kv_heads=1")


LEARNED = dict(family="gpt2", n_kv_heads=2)


@pytest.mark.parametrize(
    "changes, needed",
    [
        (dict(), 10),
        (dict(env__text="full"), 291),
        (dict(env__text="full", env__context="history"), 291),
        (dict(env__text="full", rollout__completion="free", rollout__max_new_tokens=12), 307),
        (dict(env__text="full", algo__critic="central"), 640),
    ],
)
def test_a_table_of_positions_that_is_too_short_is_refused(changes, needed):
    config = changed(tiny_run.get_config(), **changes)
    config.model.shape.update(dict(LEARNED, max_positions=needed - 1))
    words = (
        f"config.model.shape.max_positions is {needed - 1}, but must be >= {needed} for the prompts and completions of"
    )
    with pytest.raises(ConfigError, match=words):
        setups.make(config)
    config.model.shape.max_positions = needed
    setup = setups.make(config)
    if setup.history_turns:  # a conversation restarts when it runs out of positions
        history = setup.rollout.context.history
        assert history.slots(setup.backbone) == needed - len(setup.backbone.policy.prefix)
    config.model.shape.update(dict(family="qwen2", max_positions=8))  # computed positions have no limit
    setups.make(config)


@pytest.mark.parametrize("experiment", ["math_reasoning", "code_generation"])
def test_a_data_set_that_is_none_is_refused(experiment):
    with pytest.raises(ConfigError, match="dataset is None, but must be "):
        check("task.params.dataset=None", config=f"experiments/{experiment}.py")


def test_a_huge_group_and_a_huge_pool_are_refused_at_once():
    start = time.monotonic()
    with pytest.raises(ConfigError, match="config.algo.group_size is 100000000000, but must be an integer from 2 to"):
        check("algo.name=grpo", "algo.group_size=100000000000")
    with pytest.raises(
        ConfigError, match="plan_path: n_train is 100000000000, but must be an integer from 0 to 1,000,000"
    ):
        check("env.params.n_train=100000000000", config=PLAN_PATH)
    assert time.monotonic() - start < 20


def test_what_a_check_takes_long_over_is_shown(monkeypatch, capsys, own_console):
    monkeypatch.setattr(pools, "SILENT", 0.0)
    command = [f"--config={PLAN_PATH}", "--mode=config", "--config.env.params.n_train=1234"]
    assert cli.main(["launch.py", *command]) == 0
    assert "levels generated, about" in capsys.readouterr().err


@pytest.mark.parametrize(
    "game, params, words",
    [
        ("sokoban", dict(boxes="two"), "sokoban: boxes is 'two', but must be of type int"),
        ("sokoban", dict(walls=float("nan")), "sokoban: walls is nan, but must be of type float"),
        ("sokoban", dict(size=True), "sokoban: size is True, but must be of type int or None"),
        ("sokoban", dict(mask_invalid=1), "sokoban: mask_invalid is 1, but must be of type bool"),
        ("hanabi", dict(players=2.0), "hanabi: players is 2.0, but must be of type int"),
        ("sudoku", dict(seed=None), "sudoku: seed is None, but must be of type int"),
    ],
)
def test_parameters_of_games_are_checked_by_type(game, params, words):
    with pytest.raises(ValueError) as caught:
        registry.make(game, **params)
    assert words in str(caught.value)


VALUES = (
    "", "0", "-1", "1", "7", "1e400", "nan", "-inf", "100000000000", str(2**63), "true", "None", "x", "'x'", "()",
    "(1,)", "('a','b')", "{}", "[1]", "a b", "0.5", "\x00", "é", "a" * 5000, "{'a': 1}", "1_000", "0x10", "1+1", "--",
    "=", "=3",
)  # fmt: skip


@fuzz.sharded
def test_any_override_is_refused_in_lines_or_works(seen, shard):
    """Try any value in any field, and fields that do not exist."""
    command = flags.parse(["launch.py", f"--config={TIC_TAC_TOE}"], MODES)
    names = [name for name, _ in validate.fields(command.config)]
    names += ["model.shape.d_ff", "env.params.size", "x", "algo.x"]
    for seed in (seeds := fuzz.rounds(60, 1000, shard)):
        rng = random.Random(seed)
        overrides = [f"{rng.choice(names)}={rng.choice(VALUES)}" for _ in range(rng.choice((1, 1, 2)))]
        try:
            check(*overrides)
        except ConfigError as error:
            assert error.problems and all(error.problems), overrides
        except Exception as error:
            raise AssertionError(f"{overrides}: {type(error).__name__}: {error}") from error
    seen("any value in any field of a config", "refused in lines, or accepted", rounds=len(seeds))
