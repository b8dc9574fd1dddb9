"""Server side of the page: rows of growing files, confinement to run folders, keys, and games over HTTP."""

import http.client
import json
import os
import re
import shlex
import urllib.parse

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.games import registry as games
from envs.games import view
from marl_jax import cli
from marl_jax.errors import ConfigError
from marl_jax.modes import serve
from marl_jax.schema import flags, validate
from marl_jax.serving.http import server
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.keys import Keys
from marl_jax.web.page import POLICY, STATIC, tables
from marl_jax.web.page import lines as rows
from marl_jax.web.page.folders import RunFolders
from tests.marl_jax import tiny_page, tiny_run

KEY = "k-0123456789"


def call(url, path, body=None, key="", **headers):
    """Send one request with an unnormalized path and return (status, JSON or text, headers)."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    own = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body)
    own |= {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request("GET" if body is None else "POST", path, data, {**own, **headers})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(text) if is_json else text, response.headers


def query(url, name, key="", **fields):
    return call(url, f"/page/api/{name}?{urllib.parse.urlencode(fields)}", key=key)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "runs"
    tiny_page.write_run(folder / "mine")
    tiny_page.write_run(folder / "table" / "deep" / "row")
    table = "# Planning\n\nText **bold**.\n\n| a | b |\n| --- | --: |\n| 1 | `2` |\n"
    (folder / "table" / "planning.md").write_text(table)
    (folder / "table" / "planning.svg").write_text(tiny_page.SVG)
    (folder.parent / "secret.jsonl").write_text(tiny_page.lines(tiny_page.metrics(1)))
    tiny_page.write_run(folder.parent / "elsewhere")
    return folder


@pytest.fixture(scope="module")
def url(runs):
    with tiny_page.page(runs) as url:
        yield url


# ------------------------------------------------------------------------------------------------------------ files


def test_runs_are_found_with_what_they_are(url):
    status, found, _ = query(url, "runs")
    assert status == 200
    assert [run["id"] for run in found["runs"]] == ["runs/mine", "runs/table/deep/row"]
    mine = found["runs"][0]
    assert (mine["environment"], mine["model"], mine["algorithm"]) == ("tic_tac_toe", "tiny", "ppo")
    assert mine["answers"] == ["validation_00000005.jsonl"] and mine["files"]["games.jsonl"] > 0
    (tic_tac_toe,) = (game for game in found["games"] if game["id"] == "tic_tac_toe")
    assert tic_tac_toe["opponents"] == ["model: one", "minimax", "random"] and len(tic_tac_toe["roles"]) == 2


def test_rows_come_once_and_in_order(tmp_path):
    file = tmp_path / "metrics.jsonl"
    first = rows.read(file, 0, "")
    assert first["rows"] == [] and first["offset"] == 0
    file.write_text(tiny_page.lines(tiny_page.metrics(1), tiny_page.metrics(2)) + '{"step": 3, "ent')
    some = rows.read(file, first["offset"], first["mark"])
    assert [row["step"] for row in some["rows"]] == [1, 2], "a line that is being written is not read yet"
    with file.open("a") as more:
        more.write('ropy": 1.0}\nno row\n{"step": "4"}\n{"step": 5, "entropy": NaN}\n')
    rest = rows.read(file, some["offset"], some["mark"])
    assert not rest["restarted"] and [row["step"] for row in rest["rows"]] == [3, 5]
    assert rest["rows"][-1]["entropy"] is None
    assert rows.read(file, rest["offset"], rest["mark"])["rows"] == []


def test_events_are_rows_like_others(url):
    status, found, _ = query(url, "rows", run="runs/mine", file="events.jsonl")
    assert status == 200 and [(row["step"], row["kind"]) for row in found["rows"]] == [(3, "rejected"), (5, "solved")]


def test_a_file_that_was_written_anew_is_read_from_its_beginning(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(tiny_page.lines(*map(tiny_page.metrics, range(1, 9))))
    before = rows.read(file, 0, "")
    kept = [tiny_page.metrics(step) for step in (1, 2)]
    again = [{**tiny_page.metrics(step), "time": 2e9 + step} for step in range(3, 12)]
    file.write_text(tiny_page.lines(*kept, *again))
    after = rows.read(file, before["offset"], before["mark"])
    assert after["restarted"] and [row["step"] for row in after["rows"]] == list(range(1, 12))
    file.write_text(tiny_page.lines(*kept))
    shorter = rows.read(file, after["offset"], after["mark"])
    assert shorter["restarted"] and len(shorter["rows"]) == 2
    file.unlink()
    assert rows.read(file, shorter["offset"], shorter["mark"])["restarted"]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_way_of_writing_a_file_gives_its_rows(tmp_path, data):
    """Every complete row is read exactly once, however the bytes arrive and however small the pieces are."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"")
    words = st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))
    good = st.integers(0, 10**6).map(lambda step: json.dumps({"step": step}).encode())
    text = data.draw(st.lists(st.one_of(good, words, st.binary(max_size=6)), max_size=12))
    text = b"".join(line.replace(b"\n", b" ") + b"\n" for line in text)
    expected = [row for row in (rows.parse(line, file) for line in text.split(b"\n")) if row is not None]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "PIECE", data.draw(st.integers(1, 40)))
        found, at = [], {"offset": 0, "mark": ""}
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            with file.open("ab") as more:
                more.write(text[start:end])
            going = True
            while going:
                before, at = at["offset"], rows.read(file, at["offset"], at["mark"])
                assert not at["restarted"]
                found += at["rows"]
                going = at["offset"] > before
    assert found == expected and at["offset"] == len(text)


def test_games_and_episodes_are_listed_in_short_and_read_one_by_one(url):
    for file, key in (("games.jsonl", "result"), ("answers/validation_00000005.jsonl", "success")):
        found = query(url, "rows", run="runs/mine", file=file, brief=1)[1]
        assert len(found["rows"]) == 2 and key in found["rows"][0]
        assert len(json.dumps(found)) < 1200, "texts and drawings are left out"
        for short in found["rows"]:
            status, whole, _ = query(url, "row", run="runs/mine", file=file, at=short["at"])
            assert status == 200 and whole[key] == short[key]
    last = query(url, "rows", run="runs/mine", file="games.jsonl", brief=1)[1]["rows"][1]
    game = query(url, "row", run="runs/mine", file="games.jsonl", at=last["at"])[1]
    assert game["moves"][0]["answer"] == "half of a pair \ud800", "as the model wrote it"
    assert query(url, "row", run="runs/mine", file="games.jsonl", at=7)[0] == 404
    assert query(url, "rows", run="runs/mine", file="games.jsonl", after="-1")[0] == 400


def test_tables(url, runs):
    (found,) = query(url, "tables")[1]["tables"]
    assert (found["id"], found["name"], found["svg"]) == ("runs/table", "planning", tiny_page.SVG)
    assert found["blocks"] == [
        {"kind": "heading", "text": "Planning"}, {"kind": "text", "text": "Text bold."},
        {"kind": "table", "rows": [["a", "b"], ["1", "2"]]},
    ]  # fmt: skip


@given(st.text(alphabet="|#`- ab\n*", max_size=60))
def test_any_markdown_is_made_of_blocks(text):
    for block in tables.blocks(text):
        assert block["kind"] in ("heading", "text", "code", "table") and (block.get("text") or block.get("rows"))


# ------------------------------------------------------------------------------------------------------ confinement

ATTACKS = [
    "../elsewhere", "runs/../elsewhere", "runs/../../elsewhere", "runs/mine/../../../elsewhere", "/etc", "runs//mine",
    "runs/./mine", "runs/mine/", "", "runs", "elsewhere", "runs/mine\0", "runs/%2e%2e/elsewhere", "runs/table",
    "runs/mine/answers", "..", "runs/link", "runs/looped", "runs\\mine",
]  # fmt: skip
FILES = [
    "../../secret.jsonl", "../mine/metrics.jsonl", "config.json", "answers/../metrics.jsonl", "answers/../../x.jsonl",
    "/etc/passwd", "answers/..jsonl", "answers/.jsonl", "answers/a/b.jsonl", "linked.jsonl", "answers/linked.jsonl",
    "answers/x.json", "", "metrics.jsonl\0", "metrics.jsonl/", "answers/",
]  # fmt: skip


@pytest.fixture(scope="module")
def links(runs):
    os.symlink(runs.parent / "elsewhere", runs / "link")
    os.symlink(runs / "looped", runs / "looped")
    os.symlink(runs.parent / "secret.jsonl", runs / "mine" / "answers" / "linked.jsonl")
    yield
    for link in (runs / "link", runs / "looped", runs / "mine" / "answers" / "linked.jsonl"):
        link.unlink()


def test_nothing_outside_of_the_runs_is_read(url, links):
    for attack in ATTACKS:
        for name in ("run", "rows", "row"):
            status, found, _ = query(url, name, run=attack, file="metrics.jsonl", at=0)
            assert status == 404 and "error" in found, (name, attack)
    for attack in FILES:
        for name in ("rows", "row"):
            status, found, _ = query(url, name, run="runs/mine", file=attack, at=0)
            assert status == 404 and "error" in found, (name, attack)
    found = query(url, "runs")[1]["runs"]
    assert [run["id"] for run in found] == ["runs/mine", "runs/table/deep/row"]
    assert found[0]["answers"] == ["validation_00000005.jsonl"]
    for path in ("/page/../launch.py", "/page/%2e%2e/__init__.py", "/page/static/main.js", "/page//etc/passwd"):
        assert call(url, path)[0] == 404, path


PARTS = ["..", ".", "", "runs", "mine", "elsewhere", "answers", "~", "\0", "link"]


@given(st.lists(st.sampled_from(PARTS), max_size=6))
def test_no_name_leads_out_of_the_runs(runs, parts):
    folders = RunFolders([runs])
    try:
        found = folders.run("/".join(parts))
    except ApiError:
        return
    assert found.resolve().is_relative_to(runs.resolve())


def test_places_that_are_missing_are_refused_and_names_are_made_different(tmp_path):
    with pytest.raises(ConfigError, match="config.serve.runs has '.*none', which is not a folder"):
        RunFolders([tmp_path / "none"])
    tiny_page.write_run(tmp_path / "a" / "same")
    tiny_page.write_run(tmp_path / "b" / "same")
    folders = RunFolders([tmp_path / "a" / "same", tmp_path / "b" / "same", tmp_path / "a"])
    assert list(folders.runs()) == ["same", "same~2"], "the run in `a` is listed already"
    assert folders.run("same~2") == tmp_path / "b" / "same"


def test_odd_runs_do_not_stop_the_list(tmp_path):
    odd = {"env": [], "task": 3, "model": {"name": 1}, "algo": None, "steps": "x"}
    tiny_page.write_run(tmp_path / "odd", odd)
    tiny_page.write_run(tmp_path / "fine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    folders = RunFolders([tmp_path])
    described = [folders.describe(id_, folder) for id_, folder in folders.runs().items()]
    assert [(one["environment"], one["steps"]) for one in described] == [("tic_tac_toe", None), ("?", None)]


# --------------------------------------------------------------------------------------------------- keys and headers


def test_the_files_are_open_and_all_else_needs_the_key(runs):
    with tiny_page.page(runs, keys=Keys.of(KEY)) as url:
        for path in ("/page/", *(f"/page/{file.name}" for file in STATIC.iterdir())):
            status, _, headers = call(url, path)
            assert status == 200 and headers["content-security-policy"] == POLICY, path
            assert headers["x-content-type-options"] == "nosniff"
        assert call(url, "/")[2]["location"] == "/page/"
        for name in ("runs", "run", "rows", "row", "metrics", "tables", "play/x"):
            assert query(url, name)[0] == 401, name
            assert query(url, name, key="k-wrong-wrong")[0] == 401, name
        assert call(url, "/page/api/play", {"game": "tic_tac_toe", "opponent": "random"})[0] == 401
        assert query(url, "metrics", key=KEY)[1]["training"]["entropy"].startswith("Mean entropy")
        status, found, headers = query(url, "runs", key=KEY)
        assert status == 200 and found["runs"] and headers["cache-control"] == "no-store"
        session = call(url, "/v1/sessions", {}, key=KEY)[1]
        assert query(url, "runs", key=session["key"])[0] == 403, "the key of a session opens nothing here"
        assert call(url, "/page/api/play/x", {}, key=session["key"])[0] == 403


def test_other_sites_reach_nothing(url):
    """Requests under the name of another site, or from its forms, are rejected."""
    assert call(url, "/page/api/runs", Host="evil.example")[0] == 403
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=20)
    connection.request("POST", "/page/api/play", '{"game": "kuhn"}', {"Content-Type": "text/plain"})
    assert connection.getresponse().status == 415
    connection.close()
    assert "default-src 'self'" in POLICY and "unsafe" not in POLICY


MARKUP_MAKERS = (
    "innerHTML", "outerHTML", "insertAdjacent", "eval(", "Function(", "document.write", "srcdoc", "DOMParser",
    "createContextualFragment", "javascript:",
)  # fmt: skip


def test_the_files_name_nothing_from_elsewhere_and_make_no_markup():
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")  # an XML namespace, which is not fetched
        for word in ("https:", "http:", '"//', "@import", "url(", *MARKUP_MAKERS):
            assert word not in text, (file.name, word)


# -------------------------------------------------------------------------------------------------------------- play


def begin(url, **body):
    return call(url, "/page/api/play", {"game": "tic_tac_toe", "opponent": "model: one", "seat": 0, "seed": 1, **body})


def test_a_game_against_a_model(url):
    """The scripted model takes the first free cell, so 7, 8 and 9 win."""
    status, game, _ = begin(url)
    assert status == 200 and game["your_turn"] and game["seats"] == ["player 0 (you)", "player 1 (model: one)"]
    assert game["legal"][4] == {"action": 4, "words": "5", "place": [60, 60, 60, 60]}
    assert "You are X." in game["prompt"] and game["svg"].startswith("<svg")
    for turn, action in enumerate((6, 7)):
        status, game, _ = call(url, f"/page/api/play/{game['id']}", {"turn": 2 * turn, "action": action})
        assert status == 200 and game["your_turn"] and "answer" not in game["moves"][1]
    assert [move["words"] for move in game["moves"]] == ["7", "1", "8", "2"]
    old = call(url, f"/page/api/play/{game['id']}", {"turn": 0, "action": 8})
    assert old[0] == 409 and "at turn 4" in old[1]["error"]["message"], "a second click on an old board"
    assert call(url, f"/page/api/play/{game['id']}", {"turn": 4, "action": 0})[0] == 400
    assert call(url, f"/page/api/play/{game['id']}", {"turn": 4, "action": True})[0] == 400
    end = call(url, f"/page/api/play/{game['id']}", {"turn": 4, "action": 8})[1]
    assert end["done"] and end["result"] == ["player 0 (you) wins."] and end["paid"] == [1.0, -1.0]
    assert end["moves"][1]["answer"] == "<b>I take</b> 1" and "You are O." in end["moves"][1]["prompt"]
    assert call(url, f"/page/api/play/{end['id']}")[1] == end
    assert call(url, f"/page/api/play/{end['id']}", {"turn": 5, "action": 0})[0] == 409


def test_an_answer_that_names_no_move_is_a_random_one_and_said_so(runs):
    with tiny_page.page(runs, script=lambda prompt: "I do not know") as url:
        game = begin(url, seat=1)[1]
        assert game["turn"] == 1 and game["your_turn"]
        assert "names no legal move" in game["moves"][0]["error"]


def test_cards_of_others_are_hidden_until_the_end(url):
    game = begin(url, game="kuhn", opponent="random")[1]
    hidden = game["board"]
    while not game["done"]:
        assert all("prompt" not in move for move in game["moves"])
        move = {"turn": game["turn"], "action": game["legal"][0]["action"]}
        game = call(url, f"/page/api/play/{game['id']}", move)[1]
    assert hidden.count("?") > game["board"].count("?")


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four"])
def test_a_click_changes_the_drawing_where_it_was(name):
    """Each action has a place, and the shapes that a move adds to the drawing are inside it."""
    game = games.make(name)
    start = game.reset(jax.random.key(0))
    assert sorted(view.targets(game)) == list(range(game.n_actions))
    before = shapes_of(view.svg(game, start))
    for action, (x, y, width, height) in view.targets(game).items():
        new = shapes_of(view.svg(game, game.step(start, jnp.int32(action))[0])) - before
        assert new and all(x <= cx <= x + width and y <= cy <= y + height for _, cx, cy, _ in new)


def shapes_of(svg):
    """Return (element, x, y, color) of the shapes of a drawing: circles by center, lines by one end."""
    found = re.findall(r'<(circle|line) (?:cx|x1)="([^"]*)" (?:cy|y1)="([^"]*)"([^>]*)', svg)
    return {(kind, float(x), float(y), rest) for kind, x, y, rest in found}


def test_what_cannot_be_played_is_refused(url):
    assert begin(url, game="chess")[0] == 404
    assert begin(url, opponent="nobody")[0] == 400
    assert begin(url, seat=2)[0] == 400
    assert begin(url, seat="0")[0] == 400
    assert begin(url, seed=-1)[0] == 400
    assert begin(url, temperature=1e9)[0] == 400
    assert call(url, "/page/api/play/none")[0] == 404


# ----------------------------------------------------------------------------------------------------------- command


def test_runs_are_looked_at_without_any_model(runs, tmp_path, monkeypatch):
    """`--mode=serve --config.serve.runs=…` serves the page without an endpoint and writes nothing."""
    command = ["launch.py", "--mode=serve", f"--config.serve.runs=('{runs}',)", f"--workdir={tmp_path / 'none'}"]
    found = flags.parse(command, tuple(cli.MODES))
    validate.check(found.config, "serve")
    served = []
    monkeypatch.setattr(serve.server, "serve", lambda app, *args, **more: served.append(app))
    serve.main(found.config, tmp_path / "none")
    with server.in_thread(*served) as url:
        assert len(query(url, "runs")[1]["runs"]) == 2
        assert call(url, "/page/")[0] == 200 and call(url, "/v1/models")[0] == 404
    assert not (tmp_path / "none").exists()


def test_when_models_are_served(tmp_path):
    config = flags.default_config()
    own = tiny_page.write_run(tmp_path / "own")
    assert serve.serves_models(config, tmp_path)
    config.serve.runs = (str(tmp_path),)
    assert not serve.serves_models(config, tmp_path) and serve.serves_models(config, own)
    config.serve.models = ("random:tiny",)
    assert serve.serves_models(config, tmp_path)


def test_the_commands_of_the_docs_are_accepted(tmp_path):
    docs = (flags.REPOSITORY / "docs" / "page.md").read_text()
    commands = re.findall(r"^python (launch.py .*?)(?: +#.*)?$", docs, re.MULTILINE)
    assert len(commands) == 3
    (tmp_path / "config.json").write_text(json.dumps(tiny_run.get_config().to_dict()))
    for command in commands:
        found = flags.parse(shlex.split(command.replace("runs/mine", str(tmp_path))), tuple(cli.MODES))
        validate.check(found.config, found.values.mode)
