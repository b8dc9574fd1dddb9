"""Edited or damaged files in a run's folder: resuming and reporting ignore invalid parts."""

import dataclasses
import json
import random

import pytest

from configs import defaults
from marl_jax.errors import ConfigError
from marl_jax.modes import report
from marl_jax.rollouts.host.journal import Journal, discard_before
from marl_jax.running.conversation_logs import GameLogs, GameRecord, Move
from marl_jax.running.events import Events
from marl_jax.running.metrics import MetricsWriter, read_json_lines
from marl_jax.schema import flags, saved, validate
from tests.faults import fuzz

pytestmark = pytest.mark.nightly

MOVE = Move(0, "prompt", "answer", "5", (1.0, -1.0), "X . .", "", error="")
GAME = GameRecord("tic_tac_toe", ("main", "random"), (MOVE,) * 2, "draw", (0.0, 0.0))
ROWS = {
    "metrics.jsonl": {"step": 1, "time": 5.0, "reward": 0.5, "kl": None},
    "eval.jsonl": {"step": 1, "opponent": "random", "win_rate": 0.5, "win_rate_low": 0.4, "win_rate_high": 1},
    "events.jsonl": {"step": 1, "time": 5.0, "kind": "rejected", "message": "lost 4.1 nats"},
    "games.jsonl": json.loads(json.dumps({"step": 1, **dataclasses.asdict(GAME), "result": "draw"})),
}
MATCHES = {
    "step": 1, "names": ["a", "b"], "matrix": [[0.5, 1], [0, 0.5]], "elo": {"a": 1.0, "b": 2.0},
    "elo_low": {"a": 0.0, "b": 1.0}, "elo_high": {"a": 2.0, "b": 3.0}, "nash_average": {"a": 0.0, "b": -0.5},
    "nash_share": {"a": 1.0, "b": 0.0},
}  # fmt: skip


def write(folder, **changed):
    """A run's folder; `changed` has the text of files that are not as they were."""
    folder.mkdir(exist_ok=True)
    config = defaults.get_config()
    files = {name: json.dumps(row) + "\n" for name, row in ROWS.items()}
    files |= {"config.json": json.dumps(config.to_dict()), "evaluation.json": json.dumps(MATCHES)}
    for name, text in (files | changed).items():
        (folder / name).write_text(text)
    return folder


def use(folder):
    """Resumes the files and writes the report."""
    config = defaults.get_config()
    config.log.update(dict(tensorboard=False, progress=False))
    for made in (MetricsWriter(config, folder, start=5), Events(folder, start=5), GameLogs(config, folder, start=5)):
        made.close()
    return report.main(folder).read_text()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    "row",
    [
        {},
        {"a": 1},
        {"step": "x"},
        {"step": None},
        {"step": 1},
        {"step": 1, "opponent": 3, "players": 3, "moves": 3},
        {"step": 10**400, "time": 10**400},
        {"step": 1, "players": ["a"], "outcome": "draw", "winner": -1, "scores": [], "moves": [{}], "result": ""},
        {"step": 1, "opponent": "x", "win_rate": "high", "win_rate_low": [], "win_rate_high": {}},
        {"step": 1, "time": "now", "reward": "much"},
        {"step": 1, "opponent": "self", "failed": 3},
        {"step": 1, "opponent": "self", "games": 3, "failed": 3, "failed/timeout": "all"},
    ],
)
def test_a_row_of_another_kind_is_left_out(tmp_path, name, row):
    folder = write(tmp_path, **{name: json.dumps(row) + "\n" + json.dumps(ROWS[name]) + "\n" + "[" * 100_000 + "\n"})
    assert "<h1>" in use(folder)
    assert ROWS[name] in read_json_lines(folder / name)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"names": [], "matrix": 3}', "[" * 100_000])
def test_a_damaged_table_of_matches_is_left_out(tmp_path, text):
    assert "Round robin" in use(write(tmp_path))
    assert "Round robin" not in use(write(tmp_path, **{"evaluation.json": text}))


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(env=3), "is damaged: env is 3, but must be a group of fields"),
        (dict(algo=[]), "is damaged: algo is [], but must be a group of fields"),
        (dict(policies={"main": 3}), "is damaged: policies.main is 3, but must be a group of fields"),
        (dict(agents="all"), "is damaged: agents is 'all', but must be a group of fields"),
        (dict(model={"name": "tiny", "lora": None}), "is damaged: model.lora is None, but must be a group of fields"),
    ],
)
def test_a_damaged_config_is_refused_in_a_line(tmp_path, change, words):
    text = json.dumps(defaults.get_config().to_dict() | change)
    folder = write(tmp_path, **{"config.json": text})
    for read in (saved.read, report.main):
        with pytest.raises(ConfigError) as caught:
            read(folder)
        assert words in str(caught.value)


@pytest.mark.parametrize("change", [dict(env={"a.b": 3}), dict(policies={"a.b": {}})])
def test_a_config_with_a_dot_in_a_name_is_refused_in_a_line(tmp_path, change):
    folder = write(tmp_path, **{"config.json": json.dumps(defaults.get_config().to_dict() | change)})
    with pytest.raises(ConfigError, match=r"config\.json is damaged: .* a\.b "):
        saved.read(folder)


def test_a_drawing_that_is_no_text_and_answers_of_another_kind_do_not_stop_a_report(tmp_path):
    game = ROWS["games.jsonl"] | {"start_svg": "\ud800"}
    folder = write(tmp_path, **{"games.jsonl": json.dumps(game)})
    (folder / "answers").mkdir()
    for step in (1, 2):
        (folder / "answers" / f"validation_{step}.jsonl").write_text('{"a": 1}\n{"step": 1, "example": 0}\n7\n')
    report.main(folder)
    assert (folder / "report.html").read_text()


@pytest.mark.parametrize("line", ['{"other": 1}', "7", "null", '[[], "a", 1]', '["0.0", "call"]', "[" * 100_000])
def test_a_line_of_another_kind_in_a_journal_ends_what_is_replayed(tmp_path, line):
    path, header = tmp_path / "step_00000001.process_0.jsonl", {"step": 1}
    lines = [json.dumps(header), '["0.0", "call", 5]', line, '["1.0", "call", 6]']
    path.write_text("".join(f"{one}\n" for one in lines))
    journal = Journal(path, header)
    journal.close()
    assert journal.entries == {("0.0", "call"): 5} and path.read_text().splitlines() == lines[:2]
    (tmp_path / "step_x.process_0.jsonl").touch()
    discard_before(tmp_path, 2)
    assert not path.exists()


@fuzz.sharded
def test_any_change_of_a_row_is_left_out_or_shown(tmp_path, seen, shard):
    whole = {**ROWS, "evaluation.json": MATCHES}
    for seed in (seeds := fuzz.rounds(100, 2000, shard)):
        rng = random.Random(seed)
        name = rng.choice(sorted(whole))
        changed = fuzz.damage_json(rng, json.dumps(whole[name]).encode()).decode()
        assert "<h1>" in use(write(tmp_path, **{name: changed + "\n"})), seed
    seen("rows of a run's files changed", "shown, or left out", rounds=len(seeds))


@fuzz.sharded
def test_any_change_of_a_config_is_refused_in_lines_or_works(tmp_path, seen, shard):
    config = json.dumps(defaults.get_config().to_dict()).encode()
    for seed in (seeds := fuzz.rounds(100, 2000, shard)):
        write(tmp_path, **{"config.json": fuzz.damage_json(random.Random(seed), config).decode()})
        try:
            report.main(tmp_path)
            validate.check(flags.parse(["launch.py", f"--workdir={tmp_path}"], ("train",)).config)
        except ConfigError as error:
            assert error.problems and all(error.problems), seed
    seen("fields of `config.json` changed", "accepted, or refused in lines", rounds=len(seeds))
