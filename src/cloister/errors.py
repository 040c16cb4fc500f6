"""The one error family. Every error carries a stable code and, where there is one, a next step for its reader.

Messages are written by us from names, numbers and limits: never from prompt text, so that an error may be logged.
"""

from __future__ import annotations

import traceback


class CloisterError(Exception):
    """An error a user can act on: what went wrong, and what to do next."""

    code = "internal_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class SetupError(CloisterError):
    """The machine or the settings do not allow what was asked."""

    code = "setup_error"


class SandboxIncomplete(SetupError):
    """The kernel lacks layers of the sandbox, and nobody allowed to do without them."""

    code = "sandbox_incomplete"


class ModelNotFound(CloisterError):
    """The model named does not exist here."""

    code = "model_not_found"


class ModelUnsupported(CloisterError):
    """The model exists, but its architecture or file format cannot be served."""

    code = "model_unsupported"


class ModelCorrupt(CloisterError):
    """The model's bytes are not the bytes they should be."""

    code = "model_corrupt"


class InvalidRequest(CloisterError):
    """The request is malformed. `param` names the offending field, as OpenAI's errors do."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class PromptTooLong(InvalidRequest):
    """Prompt and answer do not fit the context window or the KV cache."""

    code = "context_length_exceeded"


class LevelUnavailable(InvalidRequest):
    """The level of protection asked for is not offered by this server."""

    code = "protection_unavailable"


class Unauthorized(CloisterError):
    """The API key is missing or unknown."""

    code = "invalid_api_key"


class QueueFull(CloisterError):
    """Too many requests wait already; `retry_after` seconds is an honest guess."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeout(CloisterError):
    """The request ran longer than the server allows."""

    code = "request_timeout"


class ServiceUnavailable(CloisterError):
    """The process that computes is gone or not yet up; trying again is right."""

    code = "service_unavailable"


class StartingUp(ServiceUnavailable):
    """What was asked for is being started; `retry_after` seconds is an honest guess of how long that still takes."""

    code = "starting_up"

    def __init__(self, message: str, *, hint: str | None = None, retry_after: int = 30) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class VaultLost(ServiceUnavailable):
    """The process that held a prompt ended, fell silent or broke the rules of its link. The request is lost with it."""

    code = "vault_lost"

    @classmethod
    def because(cls, reason: str) -> VaultLost:
        """The error for a link's verdict: vault_lost, vault_timeout or link_malformed."""
        return cls(_LOST.get(reason, _LOST["vault_lost"]), hint="Send the request again.")


_LOST = {
    "vault_lost": "The process that held the prompt ended.",
    "vault_timeout": "The process that held the prompt did not answer in time.",
    "link_malformed": "The process that held the prompt answered what it must not.",
}


class PartyLost(ServiceUnavailable):
    """A party of a computation on shares ended, fell silent, or said what it must not. Nothing was revealed."""

    code = "party_lost"


class ProtocolError(CloisterError):
    """A message between processes was malformed, oversized or of another version."""

    code = "protocol_error"


class EvidenceInvalid(CloisterError):
    """Evidence, a certificate, a token or a proof is malformed or too large to look at."""

    code = "evidence_invalid"


class VerificationFailed(CloisterError):
    """A node did not prove what the policy asks for. `checks` names what failed; no prompt was sent."""

    code = "verification_failed"

    def __init__(self, message: str, *, checks: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.checks = checks


class ChannelBroken(CloisterError):
    """A sealed message was altered, cut off, reordered, repeated or made for another key."""

    code = "channel_broken"


class ChannelKeyUnknown(ChannelBroken):
    """The node does not hold this channel key (any more): it started again. Verify it anew and send again."""

    code = "channel_key_unknown"


class MessageRepeated(ChannelBroken):
    """This sealed message was received before; somebody repeats what they recorded."""

    code = "message_repeated"


def error_from_code(
    code: str, message: str, *, hint: str | None = None, retry_after: int = 1, param: str | None = None
) -> CloisterError:
    """The error of the family with this code, as another process reported it."""
    if code == QueueFull.code:
        return QueueFull(message, retry_after=retry_after)
    if code == StartingUp.code:
        return StartingUp(message, hint=hint, retry_after=retry_after)
    kind = _BY_CODE.get(code, CloisterError)
    return kind(message, param=param, hint=hint) if issubclass(kind, InvalidRequest) else kind(message, hint=hint)


def _family(kind: type[CloisterError]) -> dict[str, type[CloisterError]]:
    return {kind.code: kind} | {code: one for below in kind.__subclasses__() for code, one in _family(below).items()}


_BY_CODE = _family(CloisterError)


def where_raised(error: BaseException) -> str:
    """Type and place of an error, without its message: libraries put their input into messages."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
