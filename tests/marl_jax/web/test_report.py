"""The report is one page that loads nothing, runs nothing and escapes text of models."""

import dataclasses
import html
import html.parser
import json
import xml.etree.ElementTree as ElementTree

import pytest

from configs import defaults
from marl_jax.errors import RunError
from marl_jax.modes import report
from marl_jax.running.conversation_logs import GameRecord, Move
from marl_jax.running.metric_help import EVALUATION, explain
from marl_jax.web import charts
from marl_jax.web import report as web_report

ATTACK = "<script>alert('x')</script><img src=x onerror=alert(1)>&lt;"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script><circle r="5"/></svg>'


@pytest.fixture
def workdir(tmp_path):
    config = defaults.get_config()
    config.name = "a run of " + ATTACK
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    metrics = [{"step": s, "time": 100.0 + s, "reward": s / 10, "kl": None, "odd/name<b>": 1.0} for s in range(1, 60)]
    evals = [
        {"step": s, "opponent": name, "games": 9, "win_rate": 0.4 + s / 200, "win_rate_low": 0.3, "win_rate_high": 0.9}
        for s in (10, 50)
        for name in ("random", "minimax" + ATTACK)
    ]
    move = Move(0, "prompt " + ATTACK, "answer " + ATTACK, "5", (1.0, -1.0), "X . .", SVG, error=ATTACK)
    game = GameRecord("tic_tac_toe", ("main", ATTACK), (move,) * 3, "draw", (0.0, 0.0), start_svg=SVG)
    games = [{"step": s, **dataclasses.asdict(game), "result": "draw"} for s in range(20)]
    (tmp_path / "workflow.svg").write_bytes(SVG.encode() + b"\xff")
    for name, rows in (("metrics", metrics), ("eval", evals), ("games", games)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


class Reader(html.parser.HTMLParser):
    """A parser that collects tags and external links and checks that tags close in order."""

    VOID = {"meta", "img", "line", "circle", "path", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.words = [], set(), [], []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attributes)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID or tag == "path":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def test_nothing_is_run_or_loaded(workdir):
    page = report.main(workdir).read_text()
    reader = read(page)
    assert "script" not in reader.tags
    assert reader.links and all(link.startswith("data:image/svg+xml;base64,") for link in reader.links)
    assert "http://" not in page and "https://" not in page
    assert "default-src 'none'" in page


def test_it_shows_the_evaluation_the_games_and_the_config(workdir):
    words = "".join(read(report.main(workdir).read_text()).words)
    assert ATTACK in words  # as text
    assert "65.0 % [30.0, 90.0]" in words
    assert "6 of the 20 recorded games" in words
    assert "59 of 200" in words
    assert '"clip_low": 0.2' in words


@pytest.mark.parametrize(
    "figures, shown",
    [
        (
            {
                "elo": {"mine": 40.2, ATTACK: -40.2},
                "elo_low": {"mine": 30, ATTACK: -50},
                "elo_high": {"mine": 50, ATTACK: -30},
                "nash_average": {"mine": 0.0, ATTACK: -0.25},
                "nash_share": {"mine": 1.0, ATTACK: 0.0},
            },
            ["points of row against column", "mine–0.7540 [30, 50]01", f"{ATTACK}0.25–-40 [-50, -30]-0.250"],
        ),
        ({"cross_play": {"self_play": 0.5, "gap": 0.25}}, ["mine0.50.75", "self play 0.5, gap 0.25"]),
    ],
)
def test_it_shows_who_gains_what_against_whom_and_with_whom(workdir, figures, shown):
    matches = {"step": 50, "rows": [], "names": ["mine", ATTACK], "matrix": [[0.5, 0.75], [0.25, 0.5]], **figures}
    (workdir / "evaluation.json").write_text(json.dumps(matches))
    words = "".join(read(report.main(workdir).read_text()).words)
    assert "Round robin, from step 50" in words
    for text in shown:
        assert text in words


def test_shares_are_in_per_cent_and_what_is_no_number_is_left_out(workdir):
    ends = dict(success_low=0.25, success_high=0.75, win_rate_seat_0_low=0.5, win_rate_seat_0_high=1.0)
    rows = [dict(step=5, opponent="a", success=0.5, win_rate_seat_0=1.0, **ends)]
    rows += [dict(step=5, opponent="b", success=None, success_low=None, success_high=None)]
    (workdir / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = "".join(read(report.main(workdir).read_text()).words)
    assert "50.0 % [25.0, 75.0]" in words and "100.0 % [50.0, 100.0]" in words


def test_failed_episodes_are_counted_and_an_evaluation_that_failed_has_no_rate(workdir):
    ends = dict(success=0.5, success_low=0.25, success_high=0.75)
    failed = {"failed": 6, "failed/timeout": 6}
    rows = [
        dict(step=0, opponent="self", games=6, **failed),
        {"step": 5, "opponent": "self", "games": 512, **ends, "failed": 12, "failed/error": 2, "failed/timeout": 10},
    ]
    (workdir / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = "".join(read(report.main(workdir).read_text()).words)
    assert "12 of 512 failed (error: 2, timeout: 10)" in words and "episodes failed, self12 of 512" in words
    assert "self06–6 of 6 failed (timeout: 6)" in words.replace("\n", "") and "0.0 % [0.0" not in words
    assert "An evaluation in which every episode failed has no success rate." in words
    between = [rows[1] | {"step": step, "failed": step - 5} for step in (5, 6, 7, 8)]
    (workdir / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*between, between[0] | {"step": 9}]))
    words = "".join(read(report.main(workdir).read_text()).words)
    assert [f"{n} of 512 failed" in words for n in (1, 2, 3)] == [True] * 3
    (workdir / "eval.jsonl").write_text(json.dumps(rows[0]) + "\n")
    words = "".join(read(report.main(workdir).read_text()).words)
    assert "6 of 6 failed (timeout: 6)" in words and "no points yet" not in words


def test_events_are_a_table_and_marks_on_every_training_curve(workdir):
    events = [{"step": s, "time": 1.0, "kind": "rejected", "message": f"lost 4.1 nats {ATTACK}"} for s in range(12, 16)]
    events += [{"step": 59, "time": 1.0, "kind": "solved", "message": "success 0.99"}]
    (workdir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    page = report.main(workdir).read_text()
    words = "".join(read(page).words).replace("\n", "")
    assert f"12-15rejectedlost 4.1 nats {ATTACK}59solvedsuccess 0.99" in words
    training = page[page.index("<h2>Training</h2>") :]
    assert training.count("<svg") > 0 and training.count('class="event solved"') == training.count("<svg")
    assert training.count('class="event rejected"') == 4 * training.count("<svg")
    assert f"<title>{html.escape(f'rejected, step 12: lost 4.1 nats {ATTACK}')}</title>" in training


def test_many_events_stay_short(workdir):
    events = [{"step": s, "time": 1.0, "kind": "rejected", "message": "x"} for s in range(0, 20_000, 2)]
    (workdir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    page = report.main(workdir).read_text()
    assert "The last 40 of 10000" in page and len(page) < 400_000


def test_marks_stay_inside_the_axes():
    line = charts.Series("loss", [10, 20, 30], [1.0, 2.0, 3.0])
    marks = [charts.Mark("alarm", x, f"at {x}") for x in (0, 20, 20.01, 99)]
    root = ElementTree.fromstring(charts.chart([line], marks))
    drawn = {path.find("title").text: path.get("d") for path in root.iter("path") if path.get("class") == "event alarm"}
    top, bottom = charts.TOP, charts.HEIGHT - charts.BOTTOM
    middle = round((charts.LEFT + charts.WIDTH - charts.RIGHT) / 2)
    ends = charts.LEFT, middle, charts.WIDTH - charts.RIGHT
    assert drawn == {
        title: f"M{x} {top}V{bottom}" for title, x in zip(("at 0", "at 20.01", "at 99"), ends, strict=True)
    }


def test_a_run_that_has_just_begun_has_a_report_too(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(defaults.get_config().to_dict()))
    assert "No step has been logged yet" in report.main(tmp_path).read_text()


def write_task(folder, evals, metrics, games=()):
    """Write the folder of a run with a task."""
    config = defaults.get_config()
    config.task.name, config.task.n_episodes = "arithmetic", 16
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    for name, rows in (("metrics", metrics), ("eval", evals), ("games", games)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_task_has_episodes_and_success_and_no_opponent(tmp_path):
    row = dict(opponent="self", part="validation", games=64, success=0.5, success_low=0.4, success_high=0.6, failed=1)
    metrics = [{"step": s, "time": 100.0 + s, "reward/solver": 0.5, "success": s / 9} for s in range(1, 4)]
    move = Move(0, "2 + 2?", "4", "", (1.0, -0.5), "", "")
    names = ("solver (tiny)", "checker (tiny)")
    game = GameRecord("arithmetic", names, (move,), "end", (1.0, -0.5), solved=True, roles=("solver", "checker"))
    write_task(
        tmp_path, [{"step": 3, **row}], metrics, [{"step": 3, **dataclasses.asdict(game), "result": game.result}]
    )
    page = report.main(tmp_path).read_text()
    words = "".join(read(page).words)
    shown = words[: words.index("Config")]
    assert "against" not in shown and "self" not in shown and "games" not in shown
    assert "success50.0 %" in shown and "episodes failed1 of 64" in shown and "<th>episodes</th>" in page
    assert "step 3, solver (tiny), checker (tiny): solved with score 0.25" in shown
    assert "reward: solver +1, checker -0.5" in shown and "player" not in shown


def test_a_baseline_of_a_task_is_compared_with_the_trained_policies(tmp_path):
    ends = dict(games=64, success=0.5, success_low=0.4, success_high=0.6)
    write_task(tmp_path, [{"step": 0, "opponent": name, **ends} for name in ("self", "gpt")], [])
    words = "".join(read(report.main(tmp_path).read_text()).words)
    assert "the trained policies" in words and "gpt" in words and "policystepepisodes" in words


def test_tiles_are_right_after_one_step_and_leave_out_the_compilation(workdir):
    row = {"step": 1, "time": 5e8, "games_per_s": 2.0, "seconds/rollout": 30.0, "seconds/update": 42.0,
           "seconds/device": 9.0}  # fmt: skip
    (workdir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    words = "".join(read(report.main(workdir).read_text()).words)
    assert "time1.2 min" in words and "games/s, with compilation2" in words
    rows = [row, *({**row, "step": s, "time": 5e8 + s, "games_per_s": 40.0} for s in (2, 3))]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "games/s40" in "".join(read(report.main(workdir).read_text()).words)


def test_every_chart_explains_its_metric_and_every_table_scrolls(workdir):
    page = report.main(workdir).read_text()
    assert "Share of games won" in page and '<span title="Share of games won">win rate</span>' in page
    for name in ("entropy", "grad_norm"):
        row = {"step": 1, "time": 1.0, name: 0.5}
        (workdir / "metrics.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"step": 2, name: 0.6}) + "\n")
        assert f'<p class="help">{html.escape(explain(name))}</p>' in report.main(workdir).read_text()
    assert page.count("<table") == page.count('<div class="scroll" tabindex="0"><table')


@pytest.mark.parametrize(
    "name", ["score", "win_rate", "win_rate_seat_1", "payoff_seat_0", "success", "reward", "pass@8", "maj@4",
             "best_by_score@8", "right/ada/turn_2", "game_length", "nash_conv", "accuracy/hint"],
)  # fmt: skip
def test_metrics_of_evaluations_are_explained(name):
    assert explain(name, EVALUATION)
    assert explain("win_rated", EVALUATION) is None


def test_a_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(RunError, match="config.json does not exist"):
        report.main(tmp_path)


def test_a_chart_stays_inside_its_box_and_leaves_out_what_is_not_a_number():
    y = [float(i % 7) for i in range(998)] + [None, float("inf")]
    line = charts.Series("loss", list(range(1000)), y, smooth=True)
    band = charts.Series("eval", [0, 500, 999], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5])
    root = ElementTree.fromstring(charts.chart([line, band]))
    paths = [path.get("d").strip("MZ").split("L") for path in root.iter("path")]
    assert len(paths) == 4  # raw, smoothed, band, line
    for path in paths:
        for x, y in (map(float, point.split()) for point in path):
            assert charts.LEFT <= x <= charts.WIDTH and 0 <= y <= charts.HEIGHT
    assert max(map(len, paths)) <= charts.POINTS


def test_one_point_and_no_points():
    assert "<circle" in charts.chart([charts.Series("a", [3], [1.0])])
    assert "no points yet" in charts.chart([charts.Series("a", [], [])])


@pytest.mark.parametrize(
    "low, high, ticks",
    [(0.0, 1.0, [0, 0.25, 0.5, 0.75, 1.0]), (-3, 7, [-5, -2.5, 0, 2.5, 5, 7.5]), (2, 2, [1.8, 1.9, 2.0, 2.1, 2.2])],
)
def test_ticks_are_round(low, high, ticks):
    assert charts.nice_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    "ticks, labels",
    [([0.0, 0.25, 0.5], ["0", "0.25", "0.5"]), ([5.5701, 5.5702, 5.5703], ["5.5701", "5.5702", "5.5703"]),
     ([0.0, 2.5e-4, 5e-4], ["0", "2.5e-4", "5e-4"]), ([100200.0, 100400.0], ["100.2k", "100.4k"])],
)  # fmt: skip
def test_labels_of_ticks_differ_and_fit(ticks, labels):
    assert charts.tick_labels(ticks) == labels


def test_smoothing_keeps_a_line_straight():
    assert charts.smoothed([1.0, 2.0, 3.0, 4.0, 5.0], 1)[1:-1] == [2.0, 3.0, 4.0]


def test_scores_are_drawn_against_the_kl():
    """The order of the steps does not matter; steps without a KL are left out."""
    rows = [{"step": i, "kl": kl, "success": 0.1 * i, "loss": 1.0} for i, kl in enumerate((0.0, 2.0, 1.0, None, 4.0))]
    drawn = "".join(web_report._over_kl(rows))
    assert "success by KL" in drawn and "KL 4" in drawn and "step" not in drawn
    assert "loss" not in drawn
    assert list(web_report._over_kl([{"step": 0, "success": 1.0}])) == []
