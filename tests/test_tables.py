"""Tables: the runner, results in run folders, intervals, and comparisons at equal tokens."""

import csv
import json
import os
import re
import signal
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.tables import all as suite
from experiments.tables import intervals, planning, records, runner, runs, trials
from marl_jax.evaluation import task_scores

# ----------------------------------------------------------------------------------------------------------- intervals

# python -c "from statsmodels.stats.proportion import proportion_confint as c; print(c(37, 50, method='wilson'))"
WILSON = {(37, 50): (0.6044684, 0.8412847), (512, 512): (0.9925530, 1.0), (0, 7): (0.0, 0.3543304)}
# scipy.stats.bootstrap((x,), np.mean, n_resamples=100_000, method="percentile", rng=np.random.default_rng(0))
DIFFERENCES = np.repeat([1.0, -1.0, 0.0], [60, 20, 320]), (0.0575, 0.1425)
RATES = np.repeat([1.0, 0.0], [300, 100]), (0.7075, 0.7925)
SEEDS = np.array([0.2, 0.5, 0.6, 0.9]), (0.3, 0.8)


@pytest.mark.quick
@pytest.mark.parametrize(("right", "n"), WILSON)
def test_rates_have_the_wilson_interval_of_statsmodels(right, n):
    rate = intervals.rate([1.0] * right + [0.0] * (n - right))
    assert rate[1:] == pytest.approx(WILSON[right, n], abs=1e-6) and rate.value == right / n
    alone = intervals.mean([np.array([[1.0] * right + [0.0] * (n - right)])])
    assert alone == pytest.approx(rate), "one seed has Wilson's interval"


@pytest.mark.quick
def test_bootstrap_intervals_are_those_of_scipy():
    values, expected = DIFFERENCES
    assert intervals.difference(values, 0 * values)[1:] == pytest.approx(expected, abs=0.003)
    values, expected = RATES
    assert intervals.mean([np.stack([values] * 3)])[1:] == pytest.approx(expected, abs=0.003), (
        "seeds that agree add nothing"
    )
    values, expected = SEEDS
    by_seed = np.repeat(values[:, None], 400, axis=1)
    assert intervals.difference(by_seed, 0 * by_seed)[1:] == pytest.approx(expected, abs=0.01), "only seeds differ"
    assert intervals.mean([by_seed])[1:] == pytest.approx(expected, abs=0.01)


def test_intervals_claim_no_more_than_the_examples_show():
    ones = np.ones((3, 512))
    assert intervals.mean([ones]) == pytest.approx(intervals.rate([1.0] * 512)), (
        "three seeds of equal levels: one sample"
    )
    assert intervals.difference([1.0] * 3, [0.0] * 3).low < 0 < intervals.difference([1.0] * 30, [0.0] * 30).low
    same = intervals.difference(ones, ones)
    assert same.value == 0 and -0.01 < same.low < 0 < same.high < 0.01
    rng = np.random.default_rng(0)
    games = [rng.integers(0, 2, (2, 300)).astype(float) for _ in range(3)]
    three, one = intervals.mean(games), intervals.mean(games[:1])
    assert three.high - three.low < 0.75 * (one.high - one.low) and three.low < np.mean(games) < three.high
    with pytest.raises(ValueError, match="3 and 2 values"):
        intervals.difference([1, 0, 1], [1, 0])


# ------------------------------------------------------------------------------------------------------------- records

CURVE = st.lists(st.floats(1, 1e6), min_size=1, max_size=8).map(
    lambda gains: {10 * (i + 1): float(total) for i, total in enumerate(np.cumsum(gains))}
)


@given(CURVE, CURVE)
def test_steps_at_equal_tokens(ours, baseline):
    first, second = records.equal_tokens(ours, baseline)
    smaller = min(max(ours.values()), max(baseline.values()))
    for run, step in ((ours, first), (baseline, second)):
        assert abs(run[step] - smaller) == min(abs(tokens - smaller) for tokens in run.values())
    assert first == max(ours) or second == max(baseline), "the run with fewer tokens is tested at its end"
    assert records.equal_tokens(baseline, ours) == (second, first)


EPISODE = st.tuples(st.sampled_from(["4", "5", None]), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())


def episode(answer, score=None, failed=False, id_="q", tokens=10, success=None):
    right = float(answer == "5") if success is None else success
    turns = [{"role": "a", "turn": 0, "tokens": tokens, "verdict": {"right": right, "answer": answer}}]
    return {"id": id_, "example": 0, "answer": answer, "score": score, "success": right if not failed else 0.0,
            "reward": 0.0, "failed": "timeout" if failed else None, "turns": turns, "metrics": {}}  # fmt: skip


@given(st.lists(EPISODE, min_size=1, max_size=9))
def test_votes_are_those_of_evaluations(drawn):
    group = [episode(*one) for one in drawn]
    assert records.majority(group) == pytest.approx(task_scores.majority(group))
    answered = [one for one in group if one["answer"] is not None and not one["failed"]]
    assert records.best(group) == pytest.approx(task_scores.best(answered or group, "score"))
    equal = [one | {"score": 1.0} for one in group]
    assert records.weighted_vote(equal) == pytest.approx(records.majority(equal)), "equal scores give a plain vote"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.floats(0, 600))
def test_as_many_samples_as_the_tokens_allow(lengths, tokens):
    samples = [episode("5", id_=id_, tokens=length) for id_ in "ab" for length in lengths]
    n = records.samples_at(samples, tokens)
    gaps = [abs(sum(lengths[:k]) - tokens) for k in range(1, len(lengths) + 1)]
    assert gaps[n - 1] == min(gaps) and records.cost(samples, n) == (sum(lengths[:n]), n)
    assert records.cost(samples) == pytest.approx((sum(lengths) / len(lengths), 1)), "one episode, not all samples"


def test_damaged_files_are_named_in_one_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "completions": 4, "completion_length": 2.5}\n{"step": 2, "comp')
    assert records.spent(tmp_path) == {1: (10.0, 4)}, "a crash cuts the last line"
    path.write_text('{"step": 1, "comp\n{"step": 2}\n')
    with pytest.raises(records.Damaged, match=r"metrics\.jsonl, line 1 must be JSON with step; copy or make .* again$"):
        records.spent(tmp_path)
    (tmp_path / "evaluation.json").write_text('{"step": 0')
    with pytest.raises(records.Damaged, match=r"evaluation\.json is not JSON"):
        records.evaluation(tmp_path, "self")
    with pytest.raises(records.Damaged, match=r"answers/test_\*\.jsonl is missing"):
        records.episodes(tmp_path)
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "test_00000005.jsonl").write_bytes(b'{"id": "q", "success": 1}\n\xff\xfe\n')
    with pytest.raises(records.Damaged, match="line 1 must be JSON with id, success, failed, turns"):
        records.episodes(tmp_path)


def test_an_evaluation_whose_episodes_all_failed_has_no_rate(tmp_path):
    failed = {"step": 0, "opponent": "self", "failed": 2}
    rate = {"success": 0.5, "success_low": 0.25, "success_high": 0.75}
    (tmp_path / "eval.jsonl").write_text(json.dumps(failed) + "\n" + json.dumps(failed | rate | {"step": 5}) + "\n")
    assert records.evaluation(tmp_path, "self", first=True) is None
    assert records.evaluation(tmp_path, "self") == (0.5, 0.25, 0.75)
    write_episodes(tmp_path, 5, [episode("5", failed=True)])
    assert records.episodes(tmp_path) == []


# -------------------------------------------------------------------------------------------------------------- runner

LAUNCH = """
import json, os, pathlib, signal, sys
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--workdir=")).partition("=")[2])
with open(folder.parent / "log", "a") as log:
    log.write(folder.name + "\\n")
if "--fail" in sys.argv:
    sys.exit("no memory")
if "--stop" in sys.argv and not (folder.parent / "stopped").exists():
    (folder.parent / "stopped").touch()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
(folder / "evaluation.json").write_text("{}")
"""


def table(**commands):
    """Return a table of runs with the given arguments; "c" needs "b"."""

    def plan(session):
        for _, row in session.wanted:
            yield runs.Run(row, [*commands[row]], records.evaluated, ("b",) if row == "c" else (), tokens=1000)

    def page(session):
        done = [row for _, row in session.wanted if records.evaluated(session.folder / row)]
        return runner.Page(runner.markdown_table(["done"], [[row] for row in done])) if done else None

    return runner.Table("toy", 1, "A toy.", {"group": {row: row for row in commands}}, plan, page)


@pytest.fixture
def fake_launch(tmp_path, monkeypatch):
    (tmp_path / "launch.py").write_text(LAUNCH)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    return lambda: (tmp_path / "out" / "log").read_text().split()


def test_a_failed_run_is_reported_and_the_others_continue(tmp_path, fake_launch, capsys):
    toy = table(a=(), b=("--fail",), c=(), d=())
    assert runner.main(toy, [f"--workdir={tmp_path}/out", "--jobs=2"]) == 1
    assert sorted(fake_launch()) == ["a", "b", "d"]
    said = capsys.readouterr()
    assert "| a |" in said.out and "| d |" in said.out and "| b |" not in said.out
    assert "toy: b failed: no memory (see " in said.err and "toy: c was skipped, because it needs b" in said.err
    assert runner.main(table(a=(), b=(), c=(), d=()), [f"--workdir={tmp_path}/out"]) == 0
    assert fake_launch()[3:] == ["b", "c"], "only missing runs, in the order of their needs"


def test_an_interrupted_table_repeats_nothing(tmp_path, fake_launch, capsys):
    toy = table(a=(), b=("--stop",), c=(), d=())
    before = signal.getsignal(signal.SIGTERM)
    assert runner.main(toy, [f"--workdir={tmp_path}/out"]) == 130
    assert fake_launch() == ["a", "b"] and signal.getsignal(signal.SIGTERM) == before
    assert "| a |" in capsys.readouterr().out, "results so far"
    assert runner.main(toy, [f"--workdir={tmp_path}/out"]) == 0
    assert fake_launch() == ["a", "b", "b", "d", "c"] or fake_launch() == ["a", "b", "b", "c", "d"]
    assert runner.main(toy, [f"--workdir={tmp_path}/out"]) == 0 and len(fake_launch()) == 5


@pytest.mark.quick
def test_flags_and_estimates(tmp_path, capsys, monkeypatch):
    toy, out = table(a=("--config=experiments/kuhn.py:ppo",), b=()), f"--workdir={tmp_path}"
    assert runner.main(toy, [out, "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert (
        "python launch.py --config=experiments/kuhn.py:ppo" in said and "2 runs, at most 2,000 generated tokens" in said
    )
    assert runner.Session(toy, ["--only=group/b"]).wanted == [("group", "b")]
    for wrong in ("--jobs=0", "--steps=-3", "--model=nope", "--stepps=3", "--seeds=0"):
        with pytest.raises(SystemExit):
            runner.Session(toy, [wrong])
    with pytest.raises(SystemExit, match="--only has 'group/x', but must be one of: group/a, group/b"):
        runner.Session(toy, ["--only=group/x"])
    with pytest.raises(SystemExit):
        runner.Session(toy, ["--seeds=2", "--config.seed=3"])
    with pytest.raises(SystemExit, match="has no results to collect"):
        runner.main(toy, [out, "--collect"])
    with pytest.raises(SystemExit, match=r"budgets of g differ: \{'a': 1, 'b': 2\}"):
        runner.check_budgets("toy", {("g", "a"): 1, ("g", "b"): 2, ("h", "a"): 3})
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="toy: no files mbpp in"):
        runner.check_files(runner.Session(toy, ["--model=smollm2"]), ["mbpp"])
    for fewer in ([], ["--model=smollm2", "--collect"]):
        runner.check_files(runner.Session(toy, fewer), ["mbpp"])


@pytest.mark.quick
def test_the_fingerprint_is_that_of_the_settings(tmp_path):
    toy = table(a=("--config=experiments/kuhn.py:ppo", "--config.model.init_from=/x/y@3"))
    moved = table(a=("--config=experiments/kuhn.py:ppo", "--config.model.init_from=/elsewhere/y@3"))
    other = table(a=("--config=experiments/kuhn.py:magnet", "--config.model.init_from=/x/y@3"))
    one, two, three = (runner.Session(some, [f"--workdir={tmp_path}"]).fingerprint() for some in (toy, moved, other))
    assert one == two != three and re.fullmatch("[0-9a-f]{12}", one)


def test_a_signal_ends_the_runs_under_way_and_begins_no_more(tmp_path):
    with runs.Running() as running:
        os.kill(os.getpid(), signal.SIGTERM)
        assert running.stopped and running.run(["touch", str(tmp_path / "c")]) == -1 and not (tmp_path / "c").exists()
        assert signal.getsignal(signal.SIGHUP) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runs.Running():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as set by nohup
    finally:
        signal.signal(signal.SIGHUP, before)


# -------------------------------------------------------------------------------------------------------- trials


def write_episodes(folder, step, some):
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    (folder / "answers" / f"test_{step:08d}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))


def write_run(folder, row, tokens, tests, seed=0, game="plan_path", solved=None, of=60):
    """Write a run of the planning team as collected from elsewhere.

    Args:
        folder: Its folder.
        row: Its form.
        tokens: Number of tokens of each update.
        tests: Number of right levels out of 100, by tested step.
        seed: Random seed.
        game: The game.
        solved: Step at which it met `stop_when`.
        of: Number of updates in its config.
    """
    folder.mkdir(parents=True)
    config = runner.config_of(f"experiments/planning_team.py:{row}").to_dict()
    config["task"]["params"]["game"] = game
    (folder / "config.json").write_text(json.dumps(config | {"seed": seed, "steps": of}))
    lines = [{"step": i + 1, "completions": 10, "completion_length": n / 10} for i, n in enumerate(tokens)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if solved:
        (folder / "events.jsonl").write_text(json.dumps({"step": solved, "kind": "solved"}) + "\n")
    for step, right in tests.items():
        write_episodes(folder, step, [episode("x", id_=f"level {i}", success=float(i < right)) for i in range(100)])


def team(tmp_path, *more):
    return [f"--workdir={tmp_path}/out", "--only=team_plan_path", f"--runs={tmp_path}/runs", *more]


@pytest.fixture
def collected(tmp_path):
    """One agent ran for 60 updates of 1,000 tokens; the team was done after 20,000 tokens."""
    for seed in range(2):
        tests = {10: 20, 20: 40 + 20 * seed, 60: 100}
        write_run(tmp_path / f"runs/tool{seed}", "tool_grpo", [1000] * 60, tests, seed)
        write_run(tmp_path / f"runs/shared{seed}", "at_grpo_shared", [2000] * 10, {10: 90}, seed, solved=10)
    write_run(tmp_path / "runs/prompt", "prompt", [], {0: 10})
    write_run(tmp_path / "runs/other_game", "tool_grpo", [1000] * 60, {60: 0}, game="sudoku")
    write_run(tmp_path / "runs/crashed", "at_grpo_per_role", [1000] * 3, {})
    published = tmp_path / "runs/published"  # another algorithm in the same form
    write_run(published, "at_grpo_published", [1000] * 60, {60: 0})
    return tmp_path


def test_runs_from_elsewhere_are_recognised_and_compared_at_equal_tokens(collected, capsys):
    assert planning.TABLE.version and runner.main(planning.TABLE, team(collected, "--collect", "--seeds=2")) == 0
    said = capsys.readouterr()
    assert (collected / "out/planning.md").read_text() == said.out
    assert "one agent with the tool + GRPO | 2 | 60 | 60,000 | 600 | 100.0 [96.3, 100.0], 10 tokens | – |" in said.out
    assert "AT-GRPO, shared | 2 | 10 | 20,000 | 100 | 90.0 [" in said.out and "| 96, 93 |" in said.out
    assert "prompts only | 1 | 0 | – | – | 10.0 [5.5, 17.4], 10 tokens | 10, 71 |" in said.out
    (line,) = [line for line in said.out.splitlines() if "| training |" in line]
    assert "| 20,000 and 20,000 | 90.0 and 50.0 | +40.0 [" in line and line.endswith("| 100 | **better** |")
    assert said.err.count("crashed ended after 3 of 60 updates") == 1
    drawn = ElementTree.fromstring((collected / "out/planning.svg").read_text())
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "Plan-Path 10x10" in words and "90.0" in words
    with (collected / "out/planning.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    shared = rows["tool agent and plan agent + AT-GRPO, shared"]
    assert (shared["value"], shared["before_value"], shared["tokens"], shared["seeds"]) == (
        "0.9",
        "0.1",
        "20000.0",
        "2",
    )


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda run: (run / "metrics.jsonl").write_text("{\n{}\n"), "shared0/metrics.jsonl, line 1 must be JSON"),
        (lambda run: (run / "config.json").write_text("{"), "shared0/config.json is not JSON"),
        (
            lambda run: (run / "answers/test_00000010.jsonl").write_text("x\n{}\n"),
            "test_00000010.jsonl, line 1 must be",
        ),
        (lambda run: (run / "answers/test_00000010.jsonl").unlink(), "shared0 has neither answers/test_*.jsonl nor"),
        (lambda run: (run / "events.jsonl").unlink(), "shared0 ended after 10 of 60 updates"),
    ],
    ids=["metrics", "config", "answers", "no answers", "no events"],
)
def test_a_damaged_folder_gives_one_line_and_the_others_are_shown(collected, capsys, harm, words):
    harm(collected / "runs/shared0")
    assert runner.main(planning.TABLE, team(collected, "--collect")) == 0
    said = capsys.readouterr()
    assert len([line for line in said.err.splitlines() if words in line]) == 1, said.err
    assert f"- Left out: {collected}" in said.out and "one agent with the tool + GRPO | 1 | 60" in said.out


def test_only_missing_runs_are_planned_and_checkpoints_at_equal_tokens_are_tested(collected):
    session = runner.Session(planning.TABLE, team(collected, "--stop_when=0.98", "--config.optim.lr=1e-5"))
    plan = {run.name: run for run in session.plan()}
    assert not {"team_plan_path/tool_grpo", "team_plan_path/prompt/test_0/test"} & set(plan)
    assert "--config.stop_when=task/plan_rate>=0.98" in plan["team_plan_path/at_grpo_per_role"].command
    test = plan["team_plan_path/at_grpo_per_role/test_60/test"]
    assert test.after == ("team_plan_path/at_grpo_per_role",) and "--config.optim.lr=1e-5" not in test.command
    here = collected / "out/team_plan_path/at_grpo_per_role"
    write_run(here, "at_grpo_per_role", [4500] * 20, {})
    for step in (10, 20):
        (here / f"checkpoints/{step}").mkdir(parents=True)
        (here / f"checkpoints/{step}/seal.json").write_text("{}")
    assert session.done(plan["team_plan_path/at_grpo_per_role"]) is False, "20 of 60 updates"
    (here / "events.jsonl").write_text('{"step": 20, "kind": "solved"}\n')
    assert session.done(plan["team_plan_path/at_grpo_per_role"])
    names = [run.name for run in session.plan() if "per_role" in run.name]
    assert names[1:] == [f"team_plan_path/at_grpo_per_role/test_{step}/test" for step in (20, 10)], (
        "its end, and 60,000"
    )
    trial = trials.trials_of(session, planning.team.SPEC)["team_plan_path", "at_grpo_per_role"][0]
    (here / "eval.jsonl").write_text('{"step": 10, "opponent": "self", "success": 0.9}\n')
    assert trials.tested_step(session, trial) == 20
    session.flags.step = "best"
    assert trials.tested_step(session, trial) == 10


# --------------------------------------------------------------------------------------------------------------- suite


def test_the_suite_lists_and_collects_all_tables(collected, capsys, monkeypatch):
    out = [f"--workdir={collected}/out", f"--planning.runs={collected}/runs", "--planning.only=team_plan_path"]
    assert suite.main([*out, "--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.partition(",")[0] for line in listed.splitlines()] == list(suite.TABLES)
    assert suite.main([*out, "--collect", "--only=planning,poker"]) == 1, "poker has no results"
    assert "poker: not made: poker: " in capsys.readouterr().err
    page, text = ((collected / f"out/tables.{end}").read_text() for end in ("html", "md"))
    assert "<td>one agent with the tool + GRPO</td>" in page and "<svg" in page and "poker: no results." in text
    made = json.loads((collected / "out/tables.json").read_text())
    settings = re.search(r"^planning, version 3, settings (\w+):", listed, re.M)[1]
    assert made == {"suite": suite.VERSION, "tables": {"planning": {"version": 3, "settings": settings}}}
    with pytest.raises(SystemExit):
        suite.main(["--only=chess"])
    assert suite.main([*out, "--dry_run", "--only=poker", "--steps=2"]) == 0
    assert "# poker: 16 runs, at most " in capsys.readouterr().out
