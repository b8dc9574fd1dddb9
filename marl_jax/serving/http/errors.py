"""Errors of requests in OpenAI's format: {"error": {message, type, param, code}}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A rejected request; the message is sent to the client."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, kind: str = "",
        headers: Mapping[str, str] | None = None,
    ):  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.kind = kind or TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """Return the response in OpenAI's format."""
        return JSONResponse(self.content(), self.status, self.headers)

    def event(self) -> bytes:
        """Return the error as the last server-sent event of a stream."""
        return f"data: {json.dumps(self.content(), ensure_ascii=False)}\n\n".encode()

    def content(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def shutting_down() -> ApiError:
    """Return the error of requests that a server which shuts down does not finish."""
    message = "the server is shutting down; try again later"
    return ApiError(503, message, code="server_ending", headers={"Retry-After": "1"})


class ClientGone(Exception):
    """The client disconnected before it was answered."""
