"""Administrative routes for trainers: sessions, rewards, new weights, and pausing the sampler.

They need the key of the server, if it has one:

    POST /v1/sessions {seed?, models?, policy_sampling?, metadata?}
                                                     -> {id, key, base_url}: calls with this key belong to the
                                                     session, and base_url is the fastest address for them
    GET  /v1/sessions/ID                             calls and conversations of the session, with token ids
    POST /v1/sessions/ID/reward {reward, call?, choice?, level?}
    POST /v1/sessions/ID/end
    POST /v1/weights {model, step?}                  reload the weights of a run
    POST /v1/pause, /v1/resume, /v1/drain            control the sampler

The key of a session gives access only to the session's routes, also under the ID "current".
"""

from __future__ import annotations

import asyncio
import json
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
MOST_METADATA = 1 << 16  # characters of JSON


class Control(Protocol):
    """A sampler that can be paused, such as `BatcherThread`."""

    def pause(self) -> None:
        """See `BatcherThread.pause`."""
        ...

    def resume(self) -> None:
        """See `BatcherThread.resume`."""
        ...

    def drain(self) -> None:
        """See `BatcherThread.drain`."""
        ...


class Admin:
    """The administrative routes.

    Args:
        sessions: Sessions of the server.
        reload: Reloads weights: maps a model and a step ("newest", "best" or a number) to the new version. None if no
            weights can be reloaded.
        control: Pauses, resumes and drains the sampler; None if that is not possible.
    """

    def __init__(
        self, sessions: Sessions, reload: Callable[[str, str], Awaitable[int]] | None = None,
        control: Control | None = None,
    ):  # fmt: skip
        self._sessions, self._reload, self._control = sessions, reload, control

    def routes(self) -> list[Route]:
        """Return all routes."""
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
            raise ApiError(400, f"seed is {seed!r}, but must be an integer", param="seed")
        if models is not None and not (isinstance(models, list) and all(isinstance(name, str) for name in models)):
            raise ApiError(400, f"models is {models!r:.80}, but must be a list of names", param="models")
        if len(models or ()) > len(self._sessions.models):
            raise ApiError(400, f"models has {len(models or ())} names, but must have each name once", param="models")
        if (size := len(json.dumps(body.get("metadata")))) > MOST_METADATA:  # kept as long as the session
            message = f"metadata has {size} characters, but must have at most {MOST_METADATA}"
            raise ApiError(413, message, param="metadata", code="request_too_large")
        if not isinstance(own, bool):
            raise ApiError(400, f"policy_sampling is {own!r:.80}, but must be true or false", param="policy_sampling")
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
            raise ApiError(400, f"call is {body['call']!r:.80}, but must be the id of a completion", param="call")
        amount: Any = body.get("reward")
        await session.reward(amount, body.get("call"), body.get("choice"), body.get("level", "team"))
        return JSONResponse({"id": session.id})

    async def _end(self, request: Request) -> Response:
        session = self._session(request)
        await self._sessions.end(session)
        return JSONResponse({"id": session.id, "ended": True})

    def _session(self, request: Request) -> Session:
        """Return the session of a path if the request has access to it."""
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
        if not isinstance(model, str) or model not in self._sessions.models:
            raise unknown_model(str(model), self._sessions.models)
        if isinstance(step, bool) or not isinstance(step, str | int):
            raise ApiError(400, f"step is {step!r:.80}, but must be 'newest', 'best' or a number", param="step")
        if self._reload is None:
            raise ApiError(
                400, f"the weights of {model!r} cannot be reloaded, because they do not come from a run", param="model"
            )
        try:
            version = await self._reload(model, str(step))
        except RunError as error:
            raise ApiError(400, str(error), param="step") from None
        return JSONResponse({"model": model, "version": version})

    def _controlled(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def run(request: Request) -> Response:
            check_admin(request)
            if self._control is None:
                raise ApiError(400, f"the sampler of this server does not support {name}")
            await asyncio.to_thread(getattr(self._control, name))
            return JSONResponse({"status": name})

        return run


def base_url(request: Request, port: int | None = None) -> str:
    """Return the URL that a client has used, with another port if `port` is given."""
    host, own = request.scope["server"][:2]
    address = request.headers.get("host") or (f"[{host}]:{own}" if ":" in host else f"{host}:{own}")
    if port is not None:
        address = re.sub(r":\d*$", "", address) + f":{port}"
    return f"http://{address}/v1"


def check_admin(request: Request) -> None:
    """Reject requests with the key of a session."""
    owner: Any = app.owner(request)
    if isinstance(owner, Session):
        raise ApiError(403, "the key of a session does not give access to this path", code="session_key")
