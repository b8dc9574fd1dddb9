"""What the tests of the page share: the folder of a run, written by hand, and a server with a scripted model."""

import contextlib
import json
import re

from envs.games import svg
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.web.page import Page
from marl_jax.web.page.folders import RunFolders
from marl_jax.web.page.lobby import GameLobby
from marl_jax.web.page.offers import find_offers
from tests.marl_jax.tiny_serving import Parrot, served

MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>&lt;b&gt;"
SVG = svg.document(60, 60, [svg.circle(30, 30, 20, "#c0392b")])
CONFIG = {"env": {"name": "tic_tac_toe"}, "task": {"name": ""}, "model": {"name": "tiny"}, "algo": {"name": "ppo"}}


def metrics(step):
    """A row of metrics.jsonl."""
    return {"step": step, "time": 1e9 + 60 * step, "entropy": 1 / (1 + step), "reward/seat_0": step / 10}


def game(step, answer=MARKUP):
    """A row of games.jsonl, of two moves."""
    move = {"player": 0, "prompt": f"board {MARKUP}", "answer": answer, "action": "5", "reward": [0.0, 0.0],
            "board": "X", "svg": SVG, "error": "", "seconds": None, "value": None}  # fmt: skip
    last = {**move, "player": 1, "action": "1", "reward": [-1.0, 1.0], "value": 0.25}
    return {"step": step, "game": "tic_tac_toe", "players": ["tiny", f"other {MARKUP}"], "moves": [move, last],
            "outcome": "win", "winner": 1, "scores": [-1.0, 1.0], "start_board": ".", "start_svg": SVG,
            "source": "train", "solved": None, "error": "", "result": "player 1 (other) wins"}  # fmt: skip


def episode(step, example, success):
    """A row of answers/PART_STEP.jsonl, of one turn."""
    turn = {"role": "solver", "turn": 0, "label": "", "prompt": f"What is 2 + 3? {MARKUP}", "text": f"5 {MARKUP}",
            "finish": "stop", "tokens": 4, "verdict": {"right": success, "answer": "5", "reason": f"box {MARKUP}"},
            "rewards": {"team": success, "agent": 0.0, "process": -0.1}}  # fmt: skip
    return {"step": step, "example": example, "sample": 0, "id": "x", "success": success, "reward": success,
            "answer": "5", "score": None, "reason": "", "metrics": {}, "failed": None, "error": "", "turns": [turn],
            "calls": {"0/check": {"output": MARKUP}}}  # fmt: skip


def lines(*rows):
    """Rows as the text of a file."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_run(folder, config=CONFIG):
    """The folder of a run with a few rows in all files."""
    (folder / "answers").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text(lines(*map(metrics, range(1, 6))))
    evals = [{"step": s, "time": 1e9, "opponent": o, "win_rate": 0.5, "win_rate_low": 0.4, "win_rate_high": 0.6}
             for s in (0, 5) for o in ("random", "minimax")]  # fmt: skip
    (folder / "eval.jsonl").write_text(lines(*evals))
    events = [{"step": 3, "time": 1e9 + 180, "kind": "rejected", "message": f"lost 4.1 nats {MARKUP}"},
              {"step": 5, "time": None, "kind": "solved", "message": "success 1"}]  # fmt: skip
    (folder / "events.jsonl").write_text(lines(*events))
    (folder / "games.jsonl").write_text(lines(game(1), game(5, "half of a pair \ud800")))
    (folder / "answers" / "validation_00000005.jsonl").write_text(lines(episode(5, 0, 1.0), episode(5, 1, 0.0)))
    return folder


def first_free_cell(prompt):
    """A scripted player of tic-tac-toe: the first number on the board, with markup around it."""
    free = re.search(r"Board:\n([^?]*)Which", prompt)[1]
    return f"<b>I take</b> {re.search('[1-9]', free)[0]}"


@contextlib.contextmanager
def page(*places, script=first_free_cell, **settings):
    """The address of a server with the page of these places and a model called one."""
    models = served(Parrot(script), ("one",))
    found = Page(RunFolders(places), GameLobby(find_offers(models, [])))
    endpoint = Endpoint(models, routes=found.routes(), open_paths=found.open_paths, **settings)
    with in_thread(endpoint.application()) as url:
        yield url
