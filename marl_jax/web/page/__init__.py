"""The web page of `--mode=serve`: curves, games, conversations, tables, and play.

Its static files are public and contain nothing about runs. The data comes as JSON from `/page/api/…`, which needs a
key of the server:

    GET  /page/api/runs                              runs and games that can be played
    GET  /page/api/run?run=ID                        config and evaluation of a run
    GET  /page/api/rows?run=&file=&after=&mark=      rows of a file from a position, see `lines.py`; brief=1 shortens
    GET  /page/api/row?run=&file=&at=                one full row
    GET  /page/api/tables                            tables of `experiments/tables`
    POST /page/api/play {game, opponent, seat, seed?, temperature?}
    GET  /page/api/play/ID
    POST /page/api/play/ID {turn, action}
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from marl_jax.running import metric_help
from marl_jax.serving.http import app
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.sessions.admin import check_admin
from marl_jax.web.page import lines, tables
from marl_jax.web.page.folders import RunFolders, read_config, read_inside
from marl_jax.web.page.lobby import GameLobby

STATIC = Path(__file__).with_name("static")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ROOT = "/page/"
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
FARTHEST = 1 << 53


class Page:
    """The routes of the page.

    Args:
        runs: Runs to show.
        room: Lobby for games.
    """

    def __init__(self, runs: RunFolders, room: GameLobby):
        self._runs, self._room = runs, room
        self._files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in KINDS}

    @property
    def open_paths(self) -> list[str]:
        """Paths that need no key: the static files, which include the form for the key."""
        return ["/", ROOT.rstrip("/"), ROOT, *(ROOT + name for name in self._files)]

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/", _to_page),
            Route(ROOT.rstrip("/"), _to_page),
            Route(ROOT, functools.partial(self._file, name="index.html")),
            *(Route(ROOT + name, functools.partial(self._file, name=name)) for name in self._files),
            Route(ROOT + "api/runs", _in_thread(self._list)),
            Route(ROOT + "api/run", _in_thread(self._run)),
            Route(ROOT + "api/rows", _in_thread(self._rows)),
            Route(ROOT + "api/row", _in_thread(self._row)),
            Route(ROOT + "api/metrics", _in_thread(_explanations)),
            Route(ROOT + "api/tables", _in_thread(self._tables)),
            Route(ROOT + "api/play", self._begin, methods=["POST"]),
            Route(ROOT + "api/play/{game}", self._show),
            Route(ROOT + "api/play/{game}", self._move, methods=["POST"]),
        ]

    async def _file(self, request: Request, name: str) -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", **SAFE}
        return Response(self._files[name], media_type=KINDS[Path(name).suffix], headers=headers)

    # Runs

    def _list(self, query: Mapping[str, str]) -> dict[str, Any]:
        runs = [self._runs.describe(id_, folder) for id_, folder in self._runs.runs().items()]
        return {"runs": runs, "games": self._room.describe()}

    def _run(self, query: Mapping[str, str]) -> dict[str, Any]:
        folder = self._runs.run(query.get("run", ""))
        try:
            evaluation = json.loads(read_inside(folder, "evaluation.json") or "null")
        except (ValueError, RecursionError):
            evaluation = None
        return {"config": read_config(folder), "evaluation": evaluation if isinstance(evaluation, dict) else None}

    def _rows(self, query: Mapping[str, str]) -> dict[str, Any]:
        name = query.get("file", "")
        path, shorten = self._runs.file(query.get("run", ""), name), None
        if query.get("brief"):
            shorten = lines.short_game if name == "games.jsonl" else lines.short_episode if "/" in name else None
        return lines.read(path, _whole(query, "after"), query.get("mark", ""), shorten)

    def _row(self, query: Mapping[str, str]) -> dict[str, Any]:
        path = self._runs.file(query.get("run", ""), query.get("file", ""))
        return lines.read_one(path, _whole(query, "at"))

    def _tables(self, query: Mapping[str, str]) -> dict[str, Any]:
        return {"tables": [table for id_, folder in self._runs.folders() for table in tables.find(id_, folder)]}

    # Play

    async def _begin(self, request: Request) -> Response:
        check_admin(request)
        body = await app.read_json(request)
        game, opponent = (_field(body, name, str, "a name") for name in ("game", "opponent"))
        seat, seed = (_field(body, name, int, "an integer", default) for name, default in (
            ("seat", 0), ("seed", secrets.randbits(31))))  # fmt: skip
        temperature = float(_field(body, "temperature", int | float, "a number", 0.0))
        if not (0 <= seed < 1 << 32 and 0 <= temperature <= 10):
            raise ApiError(
                400, f"seed is {seed} and temperature {temperature:g}, but must be 0 to 2^32 - 1 and 0 to 10"
            )
        return _json(await self._room.begin(game, opponent, seat, seed, temperature))

    async def _show(self, request: Request) -> Response:
        check_admin(request)
        return _json(await self._room.show(request.path_params["game"]))

    async def _move(self, request: Request) -> Response:
        check_admin(request)
        body = await app.read_json(request)
        turn, action = (_field(body, name, int, "an integer") for name in ("turn", "action"))
        return _json(await self._room.move(request.path_params["game"], turn, action))


def _explanations(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the explanations of metrics by pattern."""
    training = {name: text for group in metric_help.TRAINING.values() for name, text in group.items()}
    return {"training": training, "evaluation": metric_help.EVALUATION}


async def _to_page(request: Request) -> Response:
    return RedirectResponse(ROOT)


def _in_thread(answer: Callable[[Mapping[str, str]], dict[str, Any]]):
    """Return a handler that runs a function of the query parameters in a thread."""

    async def handle(request: Request) -> Response:
        check_admin(request)
        return await asyncio.to_thread(lambda: _json(answer(request.query_params)))

    return handle


def _json(value: Any) -> Response:
    """Return a JSON response in ASCII, because text of models can contain lone surrogates."""
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'", **SAFE}
    return Response(json.dumps(_finite(value)), media_type="application/json", headers=headers)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _whole(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) < FARTHEST):
        raise ApiError(400, f"{name} is {text[:40]!r}, but must be a number of bytes", param=name)
    return int(text)


def _field(body: Mapping[str, Any], name: str, kind: Any, rule: str, default: Any = None) -> Any:
    value = body.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ApiError(400, f"{name} is {str(value)[:80]!r}, but must be {rule}", param=name)
    return value
