"""Rows of every table: commands that can run, equal budgets, and pages from finished runs."""

import json
import random
from xml.etree import ElementTree

import pytest

from configs import cooperative as cooperative_forms
from configs import poker as poker_forms
from configs import variants
from configs import verifier as verifier_forms
from envs.tasks.debate import votes
from experiments.tables import (
    charts,
    cooperative,
    debate,
    planning,
    poker,
    preference,
    reasoning,
    runner,
    teams,
    verified,
    verifier,
)
from marl_jax.schema import validate
from marl_jax.schema.flags import parse as parse_flags

MODEL = "qwen2.5-coder-1.5b"
MODELS = ("", "smollm2", MODEL)


def plan_of(module, tmp_path, *flags):
    return {run.name: run for run in runner.Session(module.TABLE, [f"--workdir={tmp_path}", *flags]).plan()}


def config_of(run):
    """Return the config of a run, checked except for the runs that it starts from."""
    read = parse_flags(["launch.py", *run.command], ("train", "eval", "label"))
    mode = next((flag.partition("=")[2] for flag in run.command if flag.startswith("--mode=")), "train")
    starts = {read.config.model.init_from, *(p.model.init_from for p in read.config.policies.values() if p.model)}
    for chosen in (read.config.model, *(p.model for p in read.config.policies.values() if p.model)):
        chosen.init_from = ""  # there is no such run yet
    if read.config.algo.name != "verifier":  # its labels do not exist yet
        validate.check(read.config, mode)
    return read.config, starts


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "module",
    [planning, reasoning, debate, teams, preference, verifier, verified, poker, cooperative],
    ids=lambda module: module.TABLE.name,
)
def test_every_row_of_every_table_can_run(tmp_path, monkeypatch, module, model):
    monkeypatch.setattr(runner, "check_files", lambda *_: None)
    for imported in (reasoning, debate, verified):
        monkeypatch.setattr(imported, "check_files", lambda *_: None)
    if module is cooperative and model:
        pytest.skip("the table has the embedded model only")
    plan = plan_of(module, tmp_path, f"--model={model}", "--steps=7", "--seeds=2", "--config.optim.lr=3e-7")
    for name, run in plan.items():
        if run.command == ["--mode=eval"]:
            continue
        config, starts = config_of(run)
        if module not in (verifier, verified):  # their labels and verifiers learn from other data
            assert (config.optim.lr == 3e-7) == ("--mode=eval" not in run.command and "sft" not in name)
        if "--mode=eval" in run.command:
            assert config.eval.split == "test" and (starts == {""}) == (not run.after or module is verified)
    assert len({tuple(run.command) for run in plan.values()}) >= len(plan) - 1, "no run is made twice"


@pytest.mark.parametrize("module", [reasoning, debate], ids=lambda module: module.TABLE.name)
def test_tests_never_choose_and_data_files_are_never_replaced(tmp_path, monkeypatch, module):
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="no files gsm8k_train, gsm8k_test"):
        plan_of(module, tmp_path, f"--model={MODEL}")
    assert plan_of(module, tmp_path), "the embedded model has built-in examples"


def test_reasoning_sets_and_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(reasoning, "check_files", lambda *_: None)
    plan = plan_of(reasoning, tmp_path, f"--model={MODEL}", "--sets=gsm8k,aime2025", "--only=math,program", "--steps=3")
    small = plan["math/at_grpo_shared/test_3/aime2025"].command
    assert {"--config.eval.samples=16", "--config.eval.temperature=0.7"} <= {*small}
    assert f"--config.model.init_from={tmp_path}/math/at_grpo_shared@3" in small
    assert "--config.eval.samples=8" in plan["math/single_grpo/test_3/gsm8k_samples"].command
    assert "math/roles_grpo/test_3/gsm8k_samples" not in plan and "math/single/test_0/math500" not in plan
    assert "--config.task.params.answer=program" in plan["program/single_grpo"].command
    with pytest.raises(SystemExit, match="--sets has 'gsm9k', but must be one of: gsm8k, math500"):
        plan_of(reasoning, tmp_path, "--sets=gsm9k")
    separate, _ = config_of(plan["math/at_grpo_separate"])
    assert len(separate.policies) == 2 and not separate.model.lora.rank and separate.optim.lr == 1e-5
    for name in ("apps_test.jsonl.gz", "apps_train.jsonl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    assert "code/single/test_0/apps" in plan_of(reasoning, tmp_path, f"--model={MODEL}", "--only=code/single")


def test_debates_are_sampled_and_rows_with_a_verifier_need_one(tmp_path, monkeypatch):
    monkeypatch.setattr(debate, "check_files", lambda *_: None)
    scorer = "--scorer=http://127.0.0.1:1"
    plan = plan_of(debate, tmp_path, f"--model={MODEL}", "--only=gsm8k", scorer, "--steps=3", "--algorithm=maporl")
    assert {"--config.eval.samples=9", f"--config.task.params.{scorer[2:]}"} <= {
        *plan["gsm8k/single/test_3/samples"].command
    }
    assert "--config.task.params.dataset=nli" in plan["gsm8k/untuned/test_0/transfer"].command
    assert "--config.task.params.min_words=40" in plan["gsm8k/verifier"].command
    assert "gsm8k_debate.py:single+ppo" in plan["gsm8k/single"].command[0], "MAPoRL needs more than one turn"
    start = f"init_from={tmp_path}/gsm8k/pair@3"
    assert sum(start in flag for flag in plan["gsm8k/pair/test_3/debate"].command) == 2
    maporl, _ = config_of(plan["gsm8k/maporl"])
    assert maporl.algo.train_turns == (1, 2) and "gsm8k/pair/test_3/samples" not in plan
    assert not any("verifier" in name for name in plan_of(debate, tmp_path))
    for wrong, words in (
        ([scorer], "a verifier judges one task; add --only=gsm8k or anli"),
        (["--only=gsm8k/verifier"], "the row 'verifier' needs --scorer"),
        (["--tests=debates"], "--tests has 'debates', but must be one of: debate, samples"),
    ):
        with pytest.raises(SystemExit, match=words):
            plan_of(debate, tmp_path, *wrong)


def test_planning_rows_share_warm_starts_and_budgets(tmp_path):
    plan = plan_of(planning, tmp_path, "--only=plan_path", "--sft_steps=9", "--seeds=2")
    runs = ("sft", "grpo", "roles_sft", "at_grpo", "roles_grpo", "per_role")
    assert set(plan) == {f"plan_path/{run}{seed}" for run in runs for seed in ("", "-1")}, "no run of untrained rows"
    run = plan["plan_path/per_role-1"]
    assert run.after == ("plan_path/roles_sft-1",) and "--config.seed=1" in run.command
    assert f"--config.model.init_from={tmp_path}/plan_path/roles_sft-1" in run.command
    with pytest.raises(SystemExit, match=r"budgets of plan_path differ: .*--games must be a multiple of 32"):
        plan_of(planning, tmp_path, "--games=20")


# ---------------------------------------------------------------------------------------------------------------- pages


def collect(module, tmp_path, capsys, *flags):
    assert runner.main(module.TABLE, [f"--workdir={tmp_path}", "--collect", *flags]) == 0
    return capsys.readouterr().out


def write_rates(folder, rates, counted=()):
    """Write the evaluations of a run with a given success by step and opponent."""
    folder.mkdir(parents=True)
    lines = [
        {"step": step, "opponent": opponent, "success": x, "success_low": x - 0.1, "success_high": x + 0.1}
        for (step, opponent), x in rates.items()
    ]
    (folder / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "cut')
    lines = [{"step": i + 1, "completions": n, "completion_length": 1.0} for i, n in enumerate(counted)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_planning_page(tmp_path, capsys):
    write_rates(tmp_path / "plan_path/grpo", {(0, "self"): 0.3, (0, "random alone"): 0.2, (5, "self"): 0.4}, [120] * 5)
    write_rates(tmp_path / "plan_path/grpo-1", {(0, "self"): 0.2, (5, "self"): 0.6})
    write_rates(tmp_path / "plan_path/per_role", {(0, "swapped"): 0.3, (5, "self"): 0.7, (5, "swapped"): 0.5})
    text = collect(planning, tmp_path, capsys, "--only=plan_path", "--seeds=2", "--steps=5")
    assert "| one agent | 30.0 [20.0, 40.0]<br>20.0 [10.0, 30.0] |" in text
    both = "30.0 [20.0, 40.0] → **40.0 [30.0, 50.0]**<br>20.0 [10.0, 30.0] → **60.0 [50.0, 70.0]**"
    assert f"| one agent + GRPO | {both} |" in text and "| planner and executor + GRPO | –<br>– |" in text
    assert "| … the same, roles swapped | 30.0 [20.0, 40.0] → **50.0 [40.0, 60.0]**<br>– |" in text
    assert "random moves solve 20.0" in text and "sampled: grpo 600." in text


def record(id_, answers, tokens=10, scores=None):
    """Return an episode with the answers answers[turn][agent]; "5" is right and "-" a missing answer."""
    given = [[None if a == "-" else a for a in row] for row in answers]
    verdicts = [[{"right": float(a == "5"), "answer": a, "reason": ""} for a in row] for row in given]
    turns = [
        {"role": f"agent_{a}", "turn": t, "tokens": tokens, "context": 1, "verdict": verdict}
        for t, row in enumerate(verdicts) for a, verdict in enumerate(row)
    ]  # fmt: skip
    for turn, score in zip(turns, scores or (), strict=False):
        turn["verdict"]["score"] = score
    return {"id": id_, "success": votes.vote(verdicts[-1]), "failed": None, "turns": turns, "answer": given[-1][0],
            "score": None, "metrics": votes.metrics(verdicts, len(answers))}  # fmt: skip


def write_test(folder, some):
    (folder / "answers").mkdir(parents=True)
    (folder / "evaluation.json").write_text("{}")
    (folder / "answers/test_00000000.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))


def finish_training(folder, steps=5, tokens=100):
    (folder / f"checkpoints/{steps}").mkdir(parents=True)
    (folder / f"checkpoints/{steps}/seal.json").write_text("{}")
    lines = [{"step": i + 1, "completions": 10, "completion_length": tokens / 10} for i in range(steps)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_debate_page(tmp_path, capsys):
    rng = random.Random(0)
    for row, right in (("untuned", 0.4), ("correctness", 0.8), ("single", 0.6)):
        for test in ("debate", "samples", "refine"):
            agents, turns = {"samples": (1, 1), "refine": (1, 6)}.get(test, (3, 2))
            scored = [0.5] if (row, test) == ("single", "samples") else None
            some = []
            for i in range(100 * (6 if test == "samples" else 1)):
                answers = [["5" if rng.random() < right else "4" for _ in range(agents)] for _ in range(turns)]
                some.append(record(f"q{i % 100}", answers, scores=scored and [rng.random()]))
            write_test(tmp_path / "gsm8k" / row / f"test_{0 if row == 'untuned' else 5}" / test, some)
        if row != "untuned":
            finish_training(tmp_path / "gsm8k" / row)
    text = collect(debate, tmp_path, capsys, "--only=gsm8k", "--steps=5", "--tests=debate,samples,refine")
    assert "| | vote, turn 1 | vote, turn 2 | one agent, first turn | one agent, last turn |" in text.replace(
        "|  |", "| |"
    )
    assert "| two models, untuned | – | – | – | – |" in text and "| trained for correct answers | 1 → 2 | " in text
    lines = [line for line in text.splitlines() if line.startswith("| trained for correct answers | debate |")]
    assert [line.split(" | ")[2] for line in lines] == [
        "trained as a single agent", "maj@6, untuned", "maj@6, trained as a single agent",
        "best-of-6, trained as a single agent", "weighted vote of 6, trained as a single agent",
        "maj@6, the same model",
    ]  # fmt: skip
    assert "| maj@6, untuned | an example | 60 and 60 |" in lines[1] and lines[1].endswith("| 100 | **better** |")
    assert "| training | 500 and 500 |" in lines[0]
    ElementTree.fromstring((tmp_path / "debate.svg").read_text())


def test_transitions_count_changes_of_answers():
    some = [record("a", ["54-", "554"]), record("b", ["555", "554"])]
    assert debate.transitions(some) == [{"RR": 3 / 6, "RW": 1 / 6, "WR": 1 / 6, "WW": 1 / 6}]
    assert [debate.by_metric(some, f"vote_turn_{t}").value for t in (1, 2)] == pytest.approx([0.75, 1])


def test_verifier_runs_in_order_and_page(tmp_path, capsys):
    plan = plan_of(verifier, tmp_path, "--config.seed=3")
    assert list(plan) == ["labels", "balanced", "balanced evaluation", "unbalanced", "unbalanced evaluation"]
    assert {"--mode=label", "--config.seed=3"} <= {*plan["labels"].command} and plan["balanced"].after == ("labels",)
    assert f"--config.algo.data={tmp_path}/labels" in plan["unbalanced"].command
    row = {"games": 8, "distinct": 2, "accuracy": 0.75, "accuracy_low": 0.5, "accuracy_high": 1.0}
    for arm in verifier.ARMS:
        finish_training(tmp_path / arm, 20)
        (tmp_path / arm / "evaluation.json").write_text(
            json.dumps({"step": 20, "rows": [{"opponent": "natural"} | row]})
        )
    (tmp_path / "labels/labelled").mkdir(parents=True)
    (tmp_path / "labels/labelled/summary.json").write_text('{"train": {"questions": 16, "dropped_all_right": 3}}')
    text = collect(verifier, tmp_path, capsys)
    assert "| unbalanced | natural | 8 | 2 | 0.750 [0.500, 1.000] | – | – | – | – |" in text
    assert "questions 16, dropped all right 3." in text
    assert all(run.done(run.place(tmp_path)) for run in plan.values())


@pytest.mark.nightly
@pytest.mark.parametrize("model", [None, *variants.VARIANTS])
def test_every_form_of_a_verifier_can_work(model):
    for task in verifier_forms.TASKS:
        config = verifier_forms.verifier(task if model is None else f"{task}+{model}")
        validate.check(config)
        validate.check(config, "label")
        assert config.algo.name == "verifier" and (model in (None, "tiny") or config.model.lora.rank)
    with pytest.raises(ValueError, match="form is 'chess', but must be one of: gsm8k"):
        verifier_forms.verifier("chess")


def test_poker_page(tmp_path, capsys):
    assert set(poker.WORDS) == set(poker.SHORT) == set(poker_forms.FORMS) - set(poker_forms.POPULATIONS)
    for name, values in (("kuhn-ppo-0", (0.4, 0.1, 0.2)), ("kuhn-ppo-1", (0.45, 0.3, 0.25))):
        (tmp_path / name).mkdir()
        rows = [{"step": 20 * i, "opponent": "best_response", "exploitability": x, "nash_conv": 2 * x}
                for i, x in enumerate(values)]  # fmt: skip
        lines = [{"step": 0, "opponent": "random", "payoff": 0.5}, *rows]
        (tmp_path / name / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = collect(poker, tmp_path, capsys)
    assert "| Kuhn | PPO | 40 | 0.400, 0.450 | **0.200**, **0.250** | 0.400, 0.500 | 0.100, 0.250 |" in text
    drawn = ElementTree.fromstring((tmp_path / "poker.svg").read_text())
    assert len([element for element in drawn.iter() if element.tag.endswith("polyline")]) == 2


def test_cooperative_page(tmp_path, capsys):
    assert set(cooperative.WORDS) == set(cooperative_forms.FORMS)
    with pytest.raises(SystemExit, match="--model is smollm2, but the table has the embedded model only"):
        plan_of(cooperative, tmp_path, "--model=smollm2")
    steps = [{"step": step, "completions": 2048} for step in (1, 2)]
    for game, figure in (("small_hanabi", "score"), ("two_role_path", "success")):
        (folder := tmp_path / f"{game}-qmix-0").mkdir()
        scores = [
            {
                "step": step,
                "opponent": "self",
                "score": 9.0,
                figure: x,
                f"{figure}_low": x - 0.1,
                f"{figure}_high": x + 0.1,
            }
            for step, x in ((0, 0.2), (1, 0.8), (2, 0.4))
        ]
        for name, rows in (("eval", scores), ("metrics", steps)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = collect(cooperative, tmp_path, capsys)
    for game in cooperative.GAMES.values():
        assert f"| {game} | QMIX | 4,096 | 0.20 | **0.40** [0.30, 0.50] | 0.80 |" in text


@pytest.mark.nightly
def test_cooperative_table_from_end_to_end(tmp_path):
    """Every method is trained for two steps, and all of them play the same number of turns."""
    flags = ["--steps=2", "--seeds=1", "--config.rollout.num_envs=4", "--config.rollout.unroll_length=4"]
    flags += [
        "--config.eval.games=4",
        "--config.eval.every=1",
        "--config.model.shape.n_layers=1",
        "--config.mesh.data=1",
    ]
    assert runner.main(cooperative.TABLE, [f"--workdir={tmp_path}", *flags]) == 0
    text = (tmp_path / "cooperative.md").read_text()
    for name in cooperative.WORDS.values():
        assert all(f"| {game} | {name} | 32 |" in text for game in cooperative.GAMES.values())


def test_curves_stay_inside_their_panels():
    curve = charts.Curve("x", (0, 5, 10), (0.43, 0.1, 0.02))
    drawn = charts.curve_chart({"a": [curve], "b": []}, "updates", {"a": 0.05})
    (points,) = [e.get("points") for e in ElementTree.fromstring(drawn).iter() if e.tag.endswith("polyline")]
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert all(charts.LEFT <= x <= charts.WIDTH - charts.RIGHT for x, _ in places)
    assert all(charts.TOP <= y <= charts.HEIGHT - charts.BOTTOM for _, y in places)
    assert [y for _, y in places] == sorted(y for _, y in places)  # less exploitable is lower


@pytest.mark.nightly
def test_a_table_of_real_runs_is_made_once(tmp_path, capsys):
    command = [f"--workdir={tmp_path}", "--only=kuhn/ppo", "--steps=2", "--seeds=1", "--config.eval.opponents=()"]
    assert runner.main(poker.TABLE, command) == 0
    first = capsys.readouterr()
    assert "| Kuhn | PPO | 2 |" in first.out and "launch.py" in first.err
    assert runner.main(poker.TABLE, command) == 0
    again = capsys.readouterr()
    assert again.out == first.out and "launch.py" not in again.err


def test_a_chart_of_zeros_has_an_axis():
    drawn = charts.curve_chart({"Score": [charts.Curve("VDN", (0, 32), (0.0, 0.0))]}, "steps")
    assert drawn.count("<polyline") == 1 and ">1<" in drawn and ">32 steps<" in drawn
