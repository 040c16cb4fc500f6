"""How errors leave: in OpenAI's shape. Other exceptions may quote a prompt: only type and line are logged."""

import builtins
import logging
import math
import re

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cloister import errors
from cloister.errors import CloisterError, InvalidRequest, ModelNotFound, QuotaExceeded, where_raised
from cloister.responses import PATH, renamed

_log = logging.getLogger(__name__)


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct):
    """OpenAI's shape for every error."""

    error: ErrorBody


class BodyTooLarge(InvalidRequest, code="body_too_large"):
    """The request's body exceeds the server's limit."""


class BodyTimeout(InvalidRequest, code="body_timeout"):
    """The request's body did not arrive in time."""


class ForeignHost(CloisterError, code="foreign_host"):
    """The request's Host is not this machine, where only this machine may ask."""


class WrongMedia(InvalidRequest, code="unsupported_media_type"):
    """The request's body is not JSON."""


class ResponseNotFound(InvalidRequest, code="not_found"):
    """An answer of before was asked for."""


# The first class that matches decides; any other error is the server's own fault.
_STATUS: tuple[tuple[type[CloisterError], int], ...] = (
    *((BodyTooLarge, 413), (BodyTimeout, 408), (WrongMedia, 415), (ResponseNotFound, 404), (InvalidRequest, 400)),
    *((errors.Unauthorized, 401), (errors.NotPermitted, 403), (ForeignHost, 403), (ModelNotFound, 404)),
    *((errors.ChannelKeyUnknown, 409), (errors.MessageRepeated, 409), (errors.MessageExpired, 409)),
    *((errors.ChannelBroken, 400), (errors.QueueFull, 429), (errors.RequestTimeout, 504)),
    *((errors.ServiceUnavailable, 503), (errors.SandboxIncomplete, 500), (errors.GpuNotConfidential, 500)),
)
_TYPES = {429: "rate_limit_error", 504: "timeout_error", 503: "server_error", 500: "server_error"}
UNEXPECTED = ErrorReply(ErrorBody("The server met an unexpected error.", "server_error", None, "internal_error"))
FAILED_ELSEWHERE = re.compile(r"The computation failed \((\w{1,40})\)\.")  # from messages/lifecycle.py
_KNOWN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
"""Types that are logged: Python's own. Any other word from another process may be user content."""
_RETRY_S = {429: 1, 503: 2}
_NO_METHOD = ("This path does not answer this method.", "method_not_allowed")
_HTTP_ERRORS = {404: ("There is nothing at this path.", "not_found"), 405: _NO_METHOD}


def describe(error: Exception) -> tuple[int, ErrorReply]:
    if isinstance(error, CloisterError):
        for kind, status in _STATUS:
            if isinstance(error, kind):
                param = "model" if kind is ModelNotFound else getattr(error, "param", None)
                quota = error.code if isinstance(error, QuotaExceeded) else None  # this code is its own type at OpenAI
                type_name = quota or _TYPES.get(status, "invalid_request_error")
                return status, ErrorReply(ErrorBody(str(error), type_name, param, error.code))
        if elsewhere := FAILED_ELSEWHERE.match(str(error)):
            _log.error("Unexpected %s in another process.", elsewhere[1] if elsewhere[1] in _KNOWN else "error")
    return 500, UNEXPECTED


def error_response(error: Exception) -> Response:
    status, reply = describe(error)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif status in _RETRY_S:
        headers["Retry-After"] = str(max(1, math.ceil(getattr(error, "retry_after", _RETRY_S[status]))))
    if isinstance(error, QuotaExceeded):
        headers["x-should-retry"] = "false"  # OpenAI's SDKs would try twice more within seconds
        for what, (limit, left) in error.quota.items():
            for name, value in (("limit", limit), ("remaining", left), ("reset", f"{error.retry_after}s")):
                headers[f"x-ratelimit-{name}-{what}"] = str(value)
    return Response(msgspec.json.encode(reply), status, headers, "application/json")


async def handle_cloister_error(request: Request, error: Exception) -> Response:
    response = error_response(renamed(error) if request.url.path == PATH else error)
    if response.status_code == 401 and (challenge := request.app.state.api.backend.ready.token_challenge):
        response.headers.append("WWW-Authenticate", challenge)
    return response


async def handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, code = _HTTP_ERRORS.get(error.status_code, ("The request could not be served.", "http_error"))
    reply = ErrorReply(ErrorBody(message, "invalid_request_error", None, code))
    return Response(msgspec.json.encode(reply), error.status_code, error.headers, "application/json")


def log_unexpected(error: BaseException) -> None:
    _log.error("Unexpected %s.", where_raised(error))
