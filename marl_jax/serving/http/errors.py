"""Errors of requests in OpenAI's format: {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping

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
        content = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": content}, self.status, self.headers)


class ClientGone(Exception):
    """The client disconnected before it was answered."""
