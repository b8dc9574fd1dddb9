"""First experience of a new user: hints, --mode=config, short log lines and the report."""

import io
import json
import re
import shlex
import types

import numpy as np
import pytest

from configs import defaults
from envs.games import registry
from marl_jax import cli
from marl_jax.dryrun import largest
from marl_jax.errors import ConfigError
from marl_jax.evaluation import intervals
from marl_jax.interactive.game_table import GameTable
from marl_jax.interactive.game_terminal import _Terminal
from marl_jax.modes import compile as compile_mode
from marl_jax.modes import config, report
from marl_jax.schema import flags, validate

TIC_TAC_TOE = "--config=experiments/tic_tac_toe_selfplay.py"


def problem(*overrides):
    with pytest.raises(ConfigError) as caught:
        command = flags.parse(["launch.py", TIC_TAC_TOE, *overrides], tuple(cli.MODES))
        validate.check(command.config)
    return str(caught.value)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("optim.learning_rate", "optim.lr"),
        ("algo.lr", "optim.lr"),
        ("learning_rate", "optim.lr"),
        ("batch_size", "rollout.num_envs or task.n_episodes or algo.minibatches"),
        ("algo.beta", "algo.kl_coef"),
        ("algo.clip_range", "algo.clip_low or algo.clip_high"),
        ("optim.warmup_steps", "optim.warmup"),
        ("rollout.gmaes", "rollout.num_envs"),
        ("output_dir", "--workdir"),
        ("optim.learning-rate", "optim.lr"),
        ("optim.weight-decay", "optim.weight_decay"),
        ("weight_decay", "optim.weight_decay"),
        ("temperature", "rollout.temperature"),
        ("optim.rank", "model.lora.rank"),
        ("train.every", "checkpoint.every or eval.every or log.every"),
        ("chekpoint.every", "checkpoint.every"),
        ("num_train_epochs", "steps"),
        ("max_steps", "steps"),
        ("logging_steps", "log.every"),
        ("save_steps", "checkpoint.every"),
        ("eval_steps", "eval.every"),
        ("per_device_train_batch_size", "rollout.num_envs or task.n_episodes"),
        ("gradient_accumulation_steps", "algo.grad_accum_steps"),
        ("lr_scheduler_type", "optim.schedule"),
        ("max_completion_length", "task.max_new_tokens or rollout.max_new_tokens"),
        ("report_to", "log.wandb or log.tensorboard"),
        ("data_seed", "seed"),
        ("actor_rollout_ref.actor.kl_loss_coef", "algo.kl_coef"),
        ("trainer.test_freq", "eval.every"),
    ],
)
def test_names_that_are_usual_elsewhere_lead_to_ours(name, meant):
    assert problem(f"--config.{name}=1") == f"--config.{name} is not a field; did you mean {meant}?"


def test_a_name_like_no_other_gets_no_hint():
    assert problem("--config.top_p=1") == "--config.top_p is not a field; --help lists all fields"


def test_generations_are_a_group_where_there_are_groups():
    assert "did you mean algo.group_size?" in problem("--config.algo.name=grpo", "--config.algo.num_generations=4")
    hint = r"--config.num_generations is not a field; with algo.name .*\bgrpo\b.* it is algo.group_size"
    assert re.fullmatch(hint, problem("--config.num_generations=4"))  # PPO has no groups


def test_every_hint_is_a_field():
    from marl_jax.algorithms import ALGORITHMS
    from marl_jax.schema import renamed, run_fields

    known = {*run_fields.FIELDS, *(f"algo.{key}" for name in ALGORITHMS for key in ALGORITHMS.get(name).fields)}
    hinted = {here for meant in renamed.ELSEWHERE.values() for here in meant}
    assert {here for here in hinted if not here.startswith("--")} <= known
    assert sum(len(names.split()) for names in renamed._ELSEWHERE.values()) == len(renamed.ELSEWHERE)


def test_the_nearest_games_can_be_reached():
    text = problem("--config.rollout.num_envs=500")
    assert "try 496 or 504" in text
    for games in (496, 504):
        validate.check(flags.parse(["launch.py", TIC_TAC_TOE, f"--config.rollout.num_envs={games}"], ("train",)).config)


def test_the_config_is_shown_and_can_be_read_again():
    command = flags.parse(["launch.py", TIC_TAC_TOE, "--config.optim.lr=0.25"], tuple(cli.MODES))
    lines = config.lines(command.config)
    assert "--config.optim.lr=0.25    # default: 0.001" in lines
    again = [word for line in lines for word in shlex.split(line, comments=True)]
    assert flags.parse(["launch.py", TIC_TAC_TOE, *again], tuple(cli.MODES)).config == command.config


def test_help_lists_fields(capsys):
    assert cli.main(["launch.py", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "optim.lr (0.001): Learning rate" in shown and "algo.group_size (8): Number of completions" in shown


def test_a_run_that_draws_has_half_a_score():
    row = {"opponent": "minimax", "games": 512, "score": 0.48, "score_low": 0.4, "score_high": 0.5, "win_rate": 0.0}
    row |= {"win_rate_low": 0.0, "win_rate_high": 0.01, "win_rate_seat_0": 0.0, "win_rate_seat_0_low": 0.0}
    assert intervals.describe(row) == "minimax: score 0.480 [0.400, 0.500], win 0.000"


def test_lines_of_an_evaluation_are_short_however_much_was_measured():
    rates = {f"{kind}_{rate}": 0.5 for kind in ("play", "discard", "hint") for rate in ("accuracy", "precision")}
    row = {"accuracy": 0.5} | rates
    row |= {f"{name}_{end}": 0.5 for name in row for end in ("low", "high")}
    shown = "demonstrations: accuracy 0.500 [0.500, 0.500], play accuracy 0.500, …"
    assert intervals.describe({"opponent": "demonstrations"} | row) == shown


def test_the_report_puts_constants_last(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(defaults.get_config().to_dict()))
    rows = [{"step": s, "time": 1.0 * s, "success": 0.0, "reward": s / 10, "kl": None} for s in range(1, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = report.main(tmp_path).read_text()
    assert "<h3>reward</h3>" in page and "<h3>success</h3>" not in page
    assert "Constant at every step: success 0, kl –." in page


def test_what_is_printed_as_a_legal_answer_is_accepted():
    game = registry.make("hanabi", preset="small")
    names = types.SimpleNamespace(text=types.SimpleNamespace(names=tuple(f"a{i}" for i in range(game.n_actions))))
    table = GameTable.__new__(GameTable)
    table.game, table.prompt, table.legal = game, names, np.ones(game.n_actions, bool)
    terminal = _Terminal(table, io.StringIO(), io.StringIO())
    for action in range(game.n_actions):
        name, meaning = table.describe(action).removesuffix(")").split(" (")
        assert terminal.read_action(name) == terminal.read_action(meaning) == action


def test_the_table_of_compiling_comes_before_the_search(tmp_path, monkeypatch, capsys):
    """The table is printed before the search starts."""
    shown = []

    def search(first, *_, **__):
        shown.append(capsys.readouterr().out)
        return first, True, [first]

    monkeypatch.setattr(largest, "search", search)
    monkeypatch.setattr(compile_mode, "forecast", lambda *a, **k: Forecasted())
    monkeypatch.setattr(compile_mode.render, "as_text", lambda result: "the table")
    monkeypatch.setattr(compile_mode.render, "as_json", lambda *a: {"largest": a[-1]})
    monkeypatch.setattr(compile_mode.largest, "step_of", lambda *a: 1)
    monkeypatch.setattr(compile_mode.topology, "devices", lambda target: ([], ""))
    compile_mode.main(defaults.get_config(), tmp_path, "cpu:1")
    assert shown == ["the table\n"]
    assert "largest batch that fits: rollout.num_envs 16" in capsys.readouterr().out


class Forecasted:
    """Return a result of the compiler."""

    games, needs, mesh = 16, 100.0, {"data": 1, "fsdp": 1, "tensor": 1}
