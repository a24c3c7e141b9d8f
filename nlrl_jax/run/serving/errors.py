"""Errors as clients of the OpenAI API expect them: a status, and JSON that says what is wrong and in which field."""

from __future__ import annotations

from typing import Any

_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """A request that gets no answer.

    param: the field that is wrong, if one is. code: a word for programs.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def as_json(self) -> dict[str, Any]:
        """The body of the response."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def wrong(param: str, message: str) -> ApiError:
    """A field whose value is refused."""
    return ApiError(400, f"{param} {message}", param)
