"""What a trainer does through HTTP: sessions with their rewards, new weights, and pausing.

For whoever has the key of the server, or, where it has none, whoever reaches it:

    POST /v1/sessions {seed?, models?, policy_sampling?, metadata?}
                                                     -> {id, key, base_url}: calls with that key belong to the
                                                     session; they take the shortest way under that address
    GET  /v1/sessions/ID                             its calls and conversations, token by token
    POST /v1/sessions/ID/reward {reward, call?, choice?, level?}
    POST /v1/sessions/ID/end
    POST /v1/weights {model, step?}                  reads the weights of a run again
    POST /v1/pause, /v1/resume, /v1/drain            the sampler

A session's own key opens its own routes, also under the ID "current", and no others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from marl_jax.errors import RunError
from marl_jax.serving.http import app
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.openai.requests import check_depth
from marl_jax.serving.sessions.sessions import Session, Sessions, describe, unknown_model

CURRENT = "current"


class Control(Protocol):
    """What can be paused: a `BatcherThread`."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def drain(self) -> None: ...


class Admin:
    """The routes.

    reload   from a model's name and a step ("newest", "best" or a number) to the version that it has from now on:
             reads weights again; None where there are none to read
    control  pauses, resumes and drains the sampler; None where that is not possible
    """

    def __init__(
        self, sessions: Sessions, reload: Callable[[str, str], Awaitable[int]] | None = None,
        control: Control | None = None,
    ):  # fmt: skip
        self._sessions, self._reload, self._control = sessions, reload, control

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/sessions", self._open, methods=["POST"]),
            Route("/v1/sessions/{session}", self._show),
            Route("/v1/sessions/{session}/reward", self._reward, methods=["POST"]),
            Route("/v1/sessions/{session}/end", self._end, methods=["POST"]),
            Route("/v1/weights", self._weights, methods=["POST"]),
            *(Route(f"/v1/{name}", self._controlled(name), methods=["POST"]) for name in ("pause", "resume", "drain")),
        ]

    # Sessions

    async def _open(self, request: Request) -> Response:
        check_admin(request)
        body = await app.read_json(request)
        check_depth(body)
        seed, models, own = body.get("seed"), body.get("models"), body.get("policy_sampling", False)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ApiError(400, f"seed is {seed!r}; expected an integer", param="seed")
        if models is not None and not (isinstance(models, list) and all(isinstance(name, str) for name in models)):
            raise ApiError(400, f"models is {models!r:.80}; expected a list of names", param="models")
        if not isinstance(own, bool):
            raise ApiError(400, f"policy_sampling is {own!r:.80}; expected true or false", param="policy_sampling")
        session = await self._sessions.open(
            seed=seed, models=models, policy_sampling=own, metadata=body.get("metadata")
        )
        return JSONResponse({
            "id": session.id, "key": session.key, "models": list(session.models),
            "base_url": base_url(request, self._sessions.peer.port),
        })  # fmt: skip

    async def _show(self, request: Request) -> Response:
        return JSONResponse(describe(self._session(request)))

    async def _reward(self, request: Request) -> Response:
        session, body = self._session(request), await app.read_json(request)
        if not isinstance(body.get("call"), str | None):
            raise ApiError(400, f"call is {body['call']!r:.80}; expected the id of an answer", param="call")
        amount: Any = body.get("reward")
        await session.reward(amount, body.get("call"), body.get("choice"), body.get("level", "team"))
        return JSONResponse({"id": session.id})

    async def _end(self, request: Request) -> Response:
        session = self._session(request)
        await self._sessions.end(session)
        return JSONResponse({"id": session.id, "ended": True})

    def _session(self, request: Request) -> Session:
        """The session of a path, for whoever may see it."""
        owner, id_ = app.owner(request), request.path_params["session"]
        if isinstance(owner, Session) and id_ in (CURRENT, owner.id):
            return owner
        check_admin(request)
        return self._sessions.get(id_)

    # The sampler

    async def _weights(self, request: Request) -> Response:
        check_admin(request)
        body = await app.read_json(request)
        model, step = body.get("model"), body.get("step", "newest")
        if model not in self._sessions.models:
            raise unknown_model(str(model), self._sessions.models)
        if self._reload is None:
            raise ApiError(400, f"the weights of {model!r} come from no run", param="model")
        try:
            version = await self._reload(model, str(step))
        except RunError as error:
            raise ApiError(400, str(error), param="step") from None
        return JSONResponse({"model": model, "version": version})

    def _controlled(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def run(request: Request) -> Response:
            check_admin(request)
            if self._control is None:
                raise ApiError(400, f"this sampler has no {name}")
            await asyncio.to_thread(getattr(self._control, name))
            return JSONResponse({"status": name})

        return run


def base_url(request: Request, port: int | None = None) -> str:
    """The address that a client has asked, or with `port` the same machine at another port."""
    host, own = request.scope["server"][:2]
    asked = request.headers.get("host") or (f"[{host}]:{own}" if ":" in host else f"{host}:{own}")
    if port is not None:
        asked = re.sub(r":\d*$", "", asked) + f":{port}"
    return f"http://{asked}/v1"


def check_admin(request: Request) -> None:
    """Refuses the key of a session."""
    owner: Any = app.owner(request)
    if isinstance(owner, Session):
        raise ApiError(403, "the key of a session does not open this", code="session_key")
