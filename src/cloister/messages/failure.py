"""Errors on their way between processes: an error of ours becomes a message, and the message that error again.

Only words of ours travel. An error from elsewhere is told by its type and place: libraries put their input into theirs.
"""

from __future__ import annotations

from cloister.errors import CloisterError, error_from_code, where_raised
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import StartFailed


def failed(request_id: int, error: Exception) -> Failed:
    """The message that ends a request with this error."""
    if not isinstance(error, CloisterError):
        error = CloisterError(f"The computation failed ({type(error).__name__}).", hint="Try again.")
    retry_after, param = getattr(error, "retry_after", 0), getattr(error, "param", None)
    return Failed(request_id, error.code, str(error), retry_after, param)


def raised(event: Failed | CloisterError) -> CloisterError:
    """The error to raise for an event that ends a request."""
    if isinstance(event, CloisterError):
        return event
    return error_from_code(event.code, event.message, retry_after=event.retry_after, param=event.param)


def start_failed(error: Exception, what: str) -> StartFailed:
    """What a process says in place of being ready; `what` ("The gateway cannot start") precedes errors not of ours."""
    if isinstance(error, CloisterError):
        return StartFailed(error.code, error.message, error.hint)
    return StartFailed(CloisterError.code, f"{what}: {where_raised(error)}.")


def why_not_started(message: StartFailed) -> CloisterError:
    """The error to raise for a process that did not start."""
    return error_from_code(message.code, message.message, hint=message.hint)
