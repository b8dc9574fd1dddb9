"""Invalid configs are rejected with the field, its value and the accepted values."""

import dataclasses
import re

import pytest
from ml_collections import ConfigDict

from configs import algorithms, defaults, models, planning, poker, published
from envs.tasks import TASKS
from experiments import (
    connect_four_selfplay,
    hanabi_selfplay,
    kuhn,
    leduc,
    plan_path,
    sokoban,
    sudoku,
    tic_tac_toe_selfplay,
)
from marl_jax.algorithms import ALGORITHMS
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.errors import ConfigError, nearest
from marl_jax.fields import number
from marl_jax.learning.settings import LearnerSettings, redefault, setting
from marl_jax.schema import batches, validate

pytestmark = pytest.mark.quick


def config_with(**changes):
    """Return the default config with changed fields; `__` is a dot."""
    return changed(defaults.get_config(), **changes)


def changed(config, **changes):
    """Return the config with changed fields."""
    for name, value in changes.items():
        *groups, field = name.split("__")
        here = config
        for group in groups:
            if group not in here:
                here[group] = ConfigDict()
            here = here[group]
        with here.ignore_type():
            here[field] = value
    return config


def problems(**changes):
    with pytest.raises(ConfigError) as refused:
        validate.check(config_with(**changes))
    return refused.value.problems


@pytest.mark.parametrize("experiment", [tic_tac_toe_selfplay, connect_four_selfplay, hanabi_selfplay])
@pytest.mark.parametrize(
    "variant",
    [None, "smollm2", "smollm2-lora", "qwen2.5-0.5b", "qwen2.5-7b", "sft", "sft+tiny", "scratch", "both+smollm2"],
)
def test_every_experiment_is_accepted(experiment, variant):
    validate.check(experiment.get_config(variant))


@pytest.mark.nightly_for("experiments.sokoban")
@pytest.mark.parametrize("experiment", [plan_path, sokoban, sudoku])
def test_every_form_of_a_puzzle_is_accepted_and_has_the_same_budget(experiment):
    configs = {form: experiment.get_config(form) for form in (*planning.FORMS, "at_grpo_lora+smollm2", None)}
    for config in configs.values():
        validate.check(config)
    budgets = {batches.rows(configs[form]) * (4 if form.startswith("at_grpo") else 1) for form in planning.PLAY}
    assert len(budgets) == 1
    with pytest.raises(ValueError, match="form is 'at_grop', but must be one of: single, grpo"):
        experiment.get_config("at_grop")


@pytest.mark.parametrize("experiment", [kuhn, leduc])
def test_every_form_of_poker_is_accepted(experiment):
    for form in (None, *poker.FORMS, "sft", "smollm2", "ppo+smollm2-lora", "sft+tiny"):
        validate.check(experiment.get_config(form))
    with pytest.raises(ValueError, match="form is 'magnt', but must be one of: magnet, ppo, role, magnet_role, psro"):
        experiment.get_config("magnt")


@pytest.mark.parametrize("make", ["ppo", "magnetic_ppo", "grpo", "at_grpo", "dr_mas", "sft"])
def test_every_algorithm_is_accepted(make):
    validate.check(config_with(algo=getattr(algorithms, make)()))


@pytest.mark.parametrize("make", ["grpo", "rloo", "dr_grpo", "dapo", "gspo", "maddpg"])
def test_every_published_form_is_accepted(make):
    validate.check(config_with(algo=getattr(published, make)()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Light(LearnerSettings):
    """Settings of every algorithm and one more."""

    minibatches: int = redefault(LearnerSettings, "minibatches", 1)
    beta: float = setting(0.5, number(0, 1), "a weight")


def test_the_fields_of_an_algorithm_are_those_of_its_settings(monkeypatch):
    light = Algorithm("light", Light, None, None, None)
    monkeypatch.setattr(ALGORITHMS, "_entries", {**ALGORITHMS._entries, "light": light})
    validate.check(config_with(algo=algorithms.make("light", Light), rollout__num_envs=7))
    assert problems(algo=algorithms.make("light", Light, beta=2.0)) == [
        "config.algo.beta is 2.0, but must be a number >= 0 and <= 1"
    ]
    chosen = Light.from_config(algorithms.make("light", Light, epochs=3))
    assert (chosen.epochs, chosen.beta, chosen.guard) == (3, 0.5, "off")
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.beta = 1.0


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(steps=0), "config.steps is 0, but must be an integer >= 1"),
        (dict(steps=True), "config.steps is True, but must be an integer >= 1"),
        (dict(optim__lr=-1.0), "config.optim.lr is -1.0, but must be a number > 0"),
        (dict(optim__lr=float("nan")), "config.optim.lr is nan, but must be a number > 0"),
        (dict(algo__name="pop"), "config.algo.name is 'pop', but must be one of: ppo, grpo, at_grpo, sft"),
        (dict(algo__dual_clip=0.5), "config.algo.dual_clip is 0.5, but must be 0 (off) or a number > 1"),
        (dict(model__lora__targets=("q", "x")), "config.model.lora.targets is ('q', 'x'), but must be a tuple of"),
        (dict(model__name="quen3-8b"), "did you mean qwen3-8b?"),
        (dict(mesh__data=0), "config.mesh.data is 0, but must be an integer >= 1, or -1"),
        (dict(env__name="chess"), "config.env.name is 'chess', but must be one of: tic_tac_toe"),
        (dict(optim__lrr=1.0), "config.optim.lrr is not a field; did you mean optim.lr?"),
        # combinations
        (dict(algo=algorithms.grpo(), algo__group_size=1), "config.algo.group_size is 1, but must be an integer"),
        (dict(algo=algorithms.grpo(), algo__critic="none"), "config.algo.critic is not a field of grpo; its fields:"),
        (dict(algo=algorithms.grpo(), algo__continuation="best"), "config.algo.continuation is not a field of grpo; "),
        (dict(algo=algorithms.grpo(), algo__gamma=0.9), "config.algo.gamma is not a field of grpo"),
        (dict(algo=algorithms.sft(), algo__clip_low=0.1), "config.algo.clip_low is not a field of sft; its fields:"),
        (dict(algo__critic="none"), "config.algo.critic is 'none', but must be one of: head, separate, central"),
        (dict(algo__group_size=4), "config.algo.group_size is not a field of ppo"),
        (dict(algo__name="grpo"), "config.algo.group_size is missing, but must be an integer from 2 to"),
        (dict(algo=algorithms.sft(bot="mini")), "config.algo.bot is 'mini', "),
        (dict(algo=algorithms.sft(), opponents__pool_size=2), "has a bot in all seats"),
        (
            dict(algo=algorithms.sft(), rollout__num_envs=3, rollout__unroll_length=3),
            "rows must be a multiple of algo.minibatches x algo.grad_accum_steps =",
        ),
        (dict(algo=algorithms.sft(), optim__warmup=200), "config.optim.warmup is 200 with steps 200"),
        (dict(algo=algorithms.sft(noise=1.0)), "config.algo.noise is 1.0, but must be a number >= 0 and <= 0.9"),
        (
            dict(algo=algorithms.grpo(), rollout__num_envs=12),
            "config.rollout.num_envs is 12, but must be a multiple of algo.",
        ),
        (dict(algo=algorithms.ppo(pack=2)), "config.algo.pack is 2 with rollout.completion 'constrained'"),
        (dict(algo=algorithms.at_grpo(), algo__pack=2), "config.algo.pack is not a field of at_grpo"),
        (dict(env__context="histroy"), "config.env.context is 'histroy', but must be one of: turn, history"),
        (dict(env__history_turns=0), "config.env.history_turns is 0, but must be an integer from 1 to"),
        (dict(env__text="short"), "config.env.text is 'short', but must be one of: full, brief, compact"),
        (dict(env__context="history", rollout__num_envs=3), "which with 2 seats each gives 6 rows, but rows must be"),
        (dict(rollout__in_flight_updates=True), "but must be False for games, whose rollout is one program"),
        (dict(eval__step="last"), "config.eval.step is 'last', but must be 'newest', 'best' or a step number"),
        (dict(algo__critic="role"), "config.algo.critic is 'role', which is now algo.baseline 'seat_ema'"),
        (
            dict(model__init_from="runs/x@last"),
            "'runs/x@last', but its step must be 'newest', 'best' or a step number",
        ),
        (dict(env__name=""), "config.env.name is '' and task.name is '', but exactly one of them must be set"),
        (
            dict(task__name="sums"),
            "config.env.name is 'tic_tac_toe' and task.name is 'sums', but exactly one of them must be set",
        ),
        (dict(plugins=("no_such",)), "config.plugins: plugin 'no_such' cannot be imported"),
        (dict(rollout__games=8), "config.rollout.games is now config.rollout.num_envs"),
        (
            dict(rollout__num_envs=10, rollout__unroll_length=3, algo__minibatches=4),
            "which with 3 turns each gives 30 rows, but rows must be a multiple of",
        ),
        (dict(optim__warmup=200), "config.optim.warmup is 200 with steps 200"),
        (
            dict(algo__legal_coef=0.1, rollout__completion="free"),
            "config.algo.legal_coef is 0.1 with rollout.completion",
        ),
        (dict(agents__all="mian"), "config.agents.all is 'mian', but must be bot:NAME or one of the policies"),
        (dict(agents__seat_0="bot:solver"), "config.agents.seat_0 has 'solver', but the bots of tic_tac_toe are: "),
        (dict(agents__all="bot:random"), "config.policies.main is not used by any agent"),
        (dict(eval__swap_roles=True), "config.eval.swap_roles is True, but must be False unless the game is cooper"),
        (dict(eval__best_of=4, algo__critic="central"), "eval.best_of is 4 with critic 'central', but the critic must"),
        (
            dict(eval__best_of=4, env=defaults.environment("kuhn")),
            "but must be 1 for games other than: tic_tac_toe",
        ),
        (
            dict(env__reasoning=True, env__text="full"),
            "is True with rollout.completion 'constrained', but rollout.completion must be 'free'",
        ),
        (
            dict(env__reasoning=True, rollout__completion="free", env__text="brief"),
            "with env.text 'brief', but env.text must be 'full'",
        ),
        (
            dict(algo=algorithms.sft(), env__reasoning=True, rollout__completion="free"),
            "of algo 'sft' have no reasoning",
        ),
        (
            dict(env__reasoning=True, rollout__completion="free"),
            "max_new_tokens is 8 with env.reasoning True, but must be >= 16",
        ),
        (
            dict(eval__best_of=4, rollout__completion="free"),
            "'turn' and rollout.completion 'free', but they must be 'turn' and 'constrained'",
        ),
        (
            dict(algo=published.dapo(), rollout__completion="free", algo__overlong_buffer=8),
            "or every completion gets a penalty",
        ),
        (dict(policies__spare=defaults.policy()), "config.policies.spare is not used by any agent"),
        (
            dict(agents__seat_7="main"),
            "config.agents.seat_7 is not a seat of tic_tac_toe; choose from: all, seat_0, seat_1",
        ),
        (dict(agents={"seat_0": "main"}), "config.agents has no policy for seat_1"),
        (dict(opponents__bots=("search",)), "'search', but the bots of tic_tac_toe are: random"),
        (dict(policies__main__frozen=True), "config.policies are all frozen"),
        (dict(model__lora__rank=8, model__lora__targets=()), "config.model.lora.targets is empty with rank 8"),
        (
            dict(model__weights="no/such/folder"),
            "config.model.weights is 'no/such/folder', but must be '', 'random', or",
        ),
        (dict(model__shape={"d_modle": 64}), "config.model.shape.d_modle is not a field of a model; did you mean d_mo"),
        (dict(env__params={"size": 4}), "config.env.params: tic_tac_toe has no parameter 'size'"),
        (dict(opponents__self_play_frac=0.5), "config.opponents.pool_size is 0, but 0.50 of the games need"),
        (dict(opponents__bot_frac=0.5), "self_play_frac + bot_frac is 1.0 + 0.5, but must be at most 1"),
        (dict(eval__opponents=("minmax",)), "config.eval.opponents has 'minmax', but the bots of tic_tac_toe are: "),
        (dict(eval__opponents=("runs/x@last",)), "config.eval.opponents has 'runs/x@last', but its step must be"),
        (
            dict(checkpoint__best_metric="search/win_rate"),
            "'search/win_rate', but must be OPPONENT/METRIC, where OPPONENT",
        ),
        (
            dict(checkpoint__best_metric="random/winrate"),
            "'random/winrate', but must be OPPONENT/METRIC, where METRIC is",
        ),
        (
            dict(checkpoint__best_metric="random"),
            "'random', but must be OPPONENT/METRIC, where METRIC is one of: game_",
        ),
        (
            dict(checkpoint__best_metric="self/win_rate"),
            "'self/win_rate', but must be OPPONENT/METRIC, where OPPONENT is one of: random",
        ),
        (dict(checkpoint__best_metric="random/success"), "'random/success', but must be OPPONENT/METRIC"),
        (dict(opponents__pool_size=2), "config.opponents.pool_size is 2, but self_play_frac 1.0 and bot_frac 0.0"),
        (dict(mesh__fsdp=-1), "but must have at most one -1"),
        (dict(distributed__coordinator="host:1"), "config.distributed.enabled is False, but must be True if"),
        (
            dict(reward__team=0.0, reward__agent=0.0, reward__process=0.0),
            "config.reward has weight 0 for team, agent and process",
        ),
        (dict(reward__team=2.0), "config.reward.team is 2, but tic_tac_toe gives no team rewards; set"),
        (dict(reward__agent=0.0), "config.reward.agent is 0, but must be nonzero: tic_tac_toe gives no other"),
        (
            dict(algo=algorithms.grpo(), rollout__unroll_length=8),
            "with algo.name 'grpo', but must be >= 9 to finish every episode of tic_tac_toe",
        ),
        (dict(algo=algorithms.at_grpo(), opponents__pool_size=2), "config.opponents has players other than the"),
        (dict(algo__gae="token", algo__critic="central", rollout__completion="free"), "which has one value per turn"),
        (dict(opponents__bots=("random",)), "config.opponents.bot_frac is 0.0, which gives the bots none of the"),
        (dict(opponents__bots=("random",), opponents__bot_frac=1e-4), "gives the bots none of the"),
        (dict(env=defaults.environment("sudoku"), env__symmetry=True), "must be False: sudoku has no symmetries"),
        (
            dict(env=defaults.environment("sudoku"), opponents__self_play_frac=0.5, opponents__pool_size=2),
            "one seat has",
        ),
        (dict(agents={"seat_0": "main", "seat_1": "bot:random"}, opponents__self_play_frac=0.5), "only one seat has"),
        (dict(algo=algorithms.at_grpo(), algo__minibatches=3, rollout__num_envs=1), "with 16 turns each gives 16 rows"),
    ],
)
def test_refused(changes, message):
    found = problems(**changes)
    assert any(message in problem for problem in found), found


def test_policies_are_adapters_copies_or_models_of_their_own():
    both = dict(agents={"seat_0": "main", "seat_1": "other"}, policies__other=defaults.policy())
    validate.check(config_with(**both))
    validate.check(config_with(model__lora__rank=4, **both))
    validate.check(config_with(**both, policies__other__model=models.smollm2()))
    validate.check(config_with(model__lora__rank=4, **both, policies__other__model=models.smollm2()))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(name="smolm2-135m"), "config.policies.main.model.name is 'smolm2-135m', but must be the name of a"),
        (dict(shape={"d_modle": 64}), "config.policies.main.model.shape.d_modle is not a field of a model; did you"),
        (dict(lora=dict(rank=2, alpha=1.0, targets=())), "config.policies.main.model.lora.targets is empty with rank"),
        (dict(weights="no/such/folder"), "config.policies.main.model.weights is 'no/such/folder', but must"),
        (dict(speed=1), "config.policies.main.model.speed is not a field"),
    ],
)
def test_a_model_of_a_policy_is_checked_like_any_other(changes, message):
    model = models.smollm2()
    with model.unlocked(), model.ignore_type():
        model.update(changes)
    assert any(message in problem for problem in problems(policies__main__model=model))
    del model["remat"]
    assert "config.policies.main.model.remat is missing" in str(problems(policies__main__model=model))


def test_every_role_needs_one_policy():
    puzzle = dict(env=defaults.environment("plan_path", roles="two", size=5), eval__opponents=())
    assert problems(**puzzle, agents={"planner": "main"}) == [
        "config.agents has no policy for executor, but must name every seat or 'all'"
    ]
    found = problems(**puzzle, agents={"all": "main", "seat_0": "main", "planner": "main"})
    assert found == ["config.agents has planner and seat_0, which are the same seat; remove one of them"]
    validate.check(config_with(**puzzle, agents={"planner": "main", "seat_1": "main"}))


def test_all_problems_are_reported_at_once():
    assert len(problems(steps=-1, seed="x", algo__lam=2.0)) == 3


def test_a_missing_field_is_reported():
    config = defaults.get_config()
    del config.optim["lr"]
    with pytest.raises(ConfigError, match=re.escape("config.optim.lr is missing")):
        validate.check(config)


@pytest.fixture
def sums(monkeypatch):
    """A run with a task."""

    @dataclasses.dataclass
    class Sums:
        digits: int = 1
        roles = ("solver", "checker")

    monkeypatch.setattr(TASKS, "_entries", {"sums": Sums})
    config = defaults.get_config()
    defaults.use_task(config, "sums", digits=2)
    return config


def test_the_environment_is_a_game_or_a_task(sums):
    validate.check(sums)
    assert sums.task.params.digits == 2 and sums.eval.opponents == ()
    sums.rollout.num_envs = 7  # games are not used
    sums.rollout.in_flight_updates = True
    validate.check(sums)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(task__name="smus"), "config.task.name is 'smus', but must be one of: sums; did you mean sums?"),
        (dict(task__n_episodes=12, algo=algorithms.grpo()), "config.task.n_episodes is 12, but must be a multiple of"),
        (
            dict(task__params={"size": 4}),
            "config.task.params: sums has no parameter 'size'; its parameters are: digits",
        ),
        (dict(task__params={"digits": "x"}), "config.task.params: sums: digits is 'x', but must be of type int"),
        (dict(agents={"solver": "main"}), "config.agents has no policy for checker, but must name every seat or 'all'"),
        (dict(agents={"all": "main", "judge": "main"}), "config.agents.judge is not a seat of sums; choose from: all"),
        (dict(task__time_limit=0.0), "config.task.time_limit is 0.0, but must be a number > 0"),
        (dict(task__max_length=256), "config.task.max_new_tokens is 256, but must be less than task.max_length (256)"),
        (dict(agents__all="bot:random"), "config.agents.all is 'bot:random', but must be a policy: tasks have no bots"),
        (dict(opponents__pool_size=2), "config.opponents is set with task.name 'sums'"),
        (dict(curriculum__enabled=True), "config.curriculum.enabled is True with task.name 'sums'"),
    ],
)
def test_refused_for_a_task(sums, changes, message):
    with pytest.raises(ConfigError) as refused:
        validate.check(changed(sums, **changes))
    assert any(message in problem for problem in refused.value.problems), refused.value.problems


@pytest.mark.parametrize("step", ["newest", "best", "0", "120"])
def test_checkpoints_are_named_by_words_or_numbers(step):
    validate.check(config_with(eval__step=step))


def test_nearest_sizes():
    assert nearest(10, 8) == (8, 16)
    assert nearest(3, 8) == (8,)


def test_hanabi_pays_at_the_process_level_only_with_a_consolation():
    config = defaults.get_config()
    config.env = defaults.environment("hanabi", preset="small", consolation=0.5)
    config.eval.opponents = ()
    config.reward.process = 0.5
    validate.check(config)
    config.env.params.consolation = 0.0
    with pytest.raises(ConfigError, match=r"config.reward.process is 0.5, but hanabi gives no process rewards"):
        validate.check(config)


def test_the_best_metric_is_one_that_there_is_and_matters_only_where_something_is_learnt():
    validate.check(config_with(checkpoint__best_metric="random/win_rate_low"))
    validate.check(config_with(checkpoint__best_metric="random/win_rate_seat_1"))
    validate.check(config_with(checkpoint__best_metric="minimax/win_rate"), mode="eval")
    puzzle = dict(env=defaults.environment("plan_path", size=5), checkpoint__best_metric="self/success")
    validate.check(config_with(**puzzle))
    assert (
        "where OPPONENT is one of: self" in problems(**puzzle | dict(checkpoint__best_metric="random/score"))[0]
    )  # one seat


def test_a_planner_must_be_paid_for_its_proposals():
    def planned(team_term="immediate", frozen=False, **changes):
        config = plan_path.get_config("at_grpo_lora")
        config.algo.team_term = team_term
        config.policies.planner.frozen = frozen
        config.reward.update(changes)
        validate.check(config)

    planned()
    for changes, found in ((dict(dense=False), "reward.dense is False"), (dict(process=0.0), "reward.process is 0")):
        with pytest.raises(ConfigError, match=f"{found} with .*or set algo.team_term to 'lookahead'"):
            planned(**changes)
        planned("lookahead", **changes)
        planned(frozen=True, **changes)


@pytest.mark.parametrize(
    "name, unpaid",
    [
        ("plan_path", dict(shaping_reward=0.0)),
        ("sokoban", dict(deadlock_reward=0.0)),
        ("sudoku", dict(cell_reward=0.0)),
    ],
)
def test_a_puzzle_pays_at_the_process_level_only_where_a_parameter_says_so(name, unpaid):
    few = dict(n_train=8, n_test=2)
    validate.check(config_with(env=defaults.environment(name, **few), eval__opponents=(), reward__process=0.5))
    found = problems(env=defaults.environment(name, **few, **unpaid), eval__opponents=(), reward__process=0.5)
    assert f"config.reward.process is 0.5, but {name} gives no process rewards" in found[0]
    roles = defaults.environment(name, **few, **unpaid, roles="two")  # a planner always gets process rewards
    validate.check(config_with(env=roles, eval__opponents=(), reward__process=0.5))
