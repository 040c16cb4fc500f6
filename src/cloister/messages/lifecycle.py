"""Alive, not started, failed. Only CloisterError's messages travel: libraries put their input into theirs."""

from typing import Annotated

from msgspec import Meta

from cloister.errors import CloisterError, QuotaExceeded, error_from_code, where_raised
from cloister.messages.generation import Failed
from cloister.messages.types import Message, Name


class StartFailed(Message, frozen=True):
    """Process → its owner, instead of being ready: why it cannot serve."""

    code: Name
    message: Annotated[str, Meta(max_length=4096)]
    hint: Annotated[str, Meta(max_length=4096)] | None = None


class Ping(Message, frozen=True):
    """Owner → process, now and then once it is ready: answer with Pong (process.watchdog)."""


class Pong(Message, frozen=True):
    """Process → owner: its loop turns. It answers between two pieces of work, not from a thread beside them."""


def failed(request_id: int, error: Exception) -> Failed:
    if not isinstance(error, CloisterError):
        error = CloisterError(f"The computation failed ({type(error).__name__}).", hint="Try again.")
    retry_after, param = getattr(error, "retry_after", 0), getattr(error, "param", None)
    quota = dict(error.quota) if isinstance(error, QuotaExceeded) else {}
    return Failed(request_id, error.code, str(error), retry_after, param, quota)


def raised(event: Failed | CloisterError) -> CloisterError:
    if isinstance(event, CloisterError):
        return event
    code, retry_after, param = event.code, event.retry_after, event.param
    return error_from_code(code, event.message, retry_after=retry_after, param=param, quota=event.quota)


def start_failed(error: Exception, what: str) -> StartFailed:
    """`what` ("The gateway cannot start") precedes errors of other libraries."""
    if isinstance(error, CloisterError):
        return StartFailed(error.code, error.message, error.hint)
    return StartFailed(CloisterError.code, f"{what}: {where_raised(error)}.")


def why_not_started(message: StartFailed) -> CloisterError:
    return error_from_code(message.code, message.message, hint=message.hint)
