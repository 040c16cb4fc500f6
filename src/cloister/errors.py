"""The one error family. Messages hold names, numbers and limits, no prompt text: they may be logged."""

import traceback
from collections.abc import Mapping
from typing import Literal

CountedName = Literal["tokens", "requests"]


class CloisterError(Exception):
    code = "internal_error"

    def __init_subclass__(cls, *, code: str = "") -> None:
        cls.code = code or cls.code

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class SetupError(CloisterError, code="setup_error"):
    """The machine or the settings do not allow what was asked."""


class SandboxIncomplete(SetupError, code="sandbox_incomplete"):
    """The kernel lacks layers of the sandbox, and the settings do not allow that."""


class NoGpu(SetupError, code="no_gpu"):
    """This machine has no GPU whose driver could be asked."""


class GpuNotConfidential(SetupError, code="gpu_not_confidential"):
    """A GPU is here, but what it computes is open to the machine's operator."""


class ModelNotFound(CloisterError, code="model_not_found"):
    """The model named does not exist here."""


class ModelUnsupported(CloisterError, code="model_unsupported"):
    """The model exists, but its architecture or file format cannot be served."""


class ModelCorrupt(CloisterError, code="model_corrupt"):
    """The model's bytes are not the bytes they should be."""


class InvalidRequest(CloisterError, code="invalid_request"):
    """The request is malformed. `param` names the offending field, as OpenAI's errors do."""

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class PromptTooLong(InvalidRequest, code="context_length_exceeded"):
    """Prompt and answer do not fit the context window or the KV cache."""


class LevelUnavailable(InvalidRequest, code="protection_unavailable"):
    """The level of protection asked for is not offered by this server."""


class TagsInvalid(InvalidRequest, code="tags_invalid"):
    """Tags that mark secrets are unbalanced, nested, empty, unknown, or in a place that cannot be obfuscated."""


class FormRefused(InvalidRequest, code="form_refused"):
    """What an answer must look like is malformed, too large, too complex, or not supported."""


class TooFewCandidates(InvalidRequest, code="too_few_candidates"):
    """A secret has too few plausible substitutes. Nothing was sent. `span` counts from 1."""

    def __init__(self, message: str, *, span: int = 0, found: int = 0, **more: str | None) -> None:
        super().__init__(message, **more)
        self.span, self.found = span, found


class ObfuscationRefused(InvalidRequest, code="obfuscation_refused"):
    """Sending this request would tell which of its variants is real. Nothing was sent."""


class Unauthorized(CloisterError, code="invalid_api_key"):
    """The API key is missing or unknown."""


class KeyExpired(Unauthorized, code="expired_api_key"):
    """The API key was known here, and its time is over."""


class TokenInvalid(Unauthorized, code="token_invalid"):
    """Something that should be an anonymous token, a challenge or an issuer's key is none that counts here."""


class TokenSpent(Unauthorized, code="token_spent"):
    """The token was used before."""


class NotPermitted(CloisterError, code="insufficient_permissions"):
    """The API key is known, and does not allow this."""


class QueueFull(CloisterError, code="queue_full"):
    """Too many requests wait already; `retry_after` seconds is an honest guess."""

    def __init__(self, message: str, *, hint: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class QuotaExceeded(QueueFull, code="insufficient_quota"):
    """The tenant's quota of this day (UTC) does not cover the request. `quota`: limit and rest, by what is counted."""

    quota: Mapping[CountedName, tuple[int, int]] = {}


class RequestTimeout(CloisterError, code="request_timeout"):
    """The request ran longer than the server allows."""


class ServiceUnavailable(CloisterError, code="service_unavailable"):
    """The process that computes is gone or not yet up; trying again is right."""


class StartingUp(ServiceUnavailable, code="starting_up"):
    """What was asked for is being started; `retry_after` seconds is an honest guess of how long that still takes."""

    def __init__(self, message: str, *, hint: str | None = None, retry_after: int = 30) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class WaitingForKey(ServiceUnavailable, code="waiting_for_key"):
    """The server has sealed weights, and their provider has not released the key yet."""


class VaultLost(ServiceUnavailable, code="vault_lost"):
    """The process that held a prompt ended, timed out or broke the rules of its link. The request is lost with it."""

    @classmethod
    def because(cls, reason: str) -> "VaultLost":
        return cls(_LOST.get(reason, _LOST["vault_lost"]), hint="Send the request again.")


_LOST = {
    "vault_lost": "The process that held the prompt ended.",
    "vault_timeout": "The process that held the prompt did not answer in time.",
    "link_malformed": "The process that held the prompt sent a malformed answer.",
}


class Deviation(ServiceUnavailable, code="deviation"):
    """The service claimed a token, a logprob or an end that the request's own vault did not compute."""


class PartyLost(ServiceUnavailable, code="party_lost"):
    """A party of a computation on shares ended, timed out, or broke the protocol."""


class ProtocolError(CloisterError, code="protocol_error"):
    """A message between processes was malformed, oversized or of another version."""


class EvidenceInvalid(CloisterError, code="evidence_invalid"):
    """Evidence, a certificate, a token or a proof is malformed or too large."""


class VerificationFailed(CloisterError, code="verification_failed"):
    """A node did not prove what the policy asks for. `checks` names what failed; no prompt was sent."""

    def __init__(self, message: str, *, checks: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.checks = checks


class ChannelBroken(CloisterError, code="channel_broken"):
    """A sealed message was altered, cut off, reordered, repeated or made for another key."""


class ChannelKeyUnknown(ChannelBroken, code="channel_key_unknown"):
    """The node does not hold this channel key: it has restarted. Verify it and send again."""


class MessageRepeated(ChannelBroken, code="message_repeated"):
    """This sealed message was received before: it may be a recording."""


class MessageExpired(ChannelBroken, code="message_expired"):
    """This sealed message has expired: it was delayed, or its sender's clock is wrong."""


def error_from_code(
    code: str,
    message: str,
    *,
    hint: str | None = None,
    retry_after: int = 1,
    param: str | None = None,
    quota: Mapping[CountedName, tuple[int, int]] | None = None,
) -> CloisterError:
    error = _BY_CODE.get(code, CloisterError)(message, hint=hint)
    if isinstance(error, InvalidRequest):
        error.param = param
    if isinstance(error, QueueFull | StartingUp):
        error.retry_after = retry_after
    if isinstance(error, QuotaExceeded):
        error.quota = quota or {}
    return error


def _family(kind: type[CloisterError]) -> dict[str, type[CloisterError]]:
    return {kind.code: kind} | {code: one for below in kind.__subclasses__() for code, one in _family(below).items()}


_BY_CODE = _family(CloisterError)
CODES = frozenset(_BY_CODE)


def where_raised(error: BaseException) -> str:
    """Type and place of an error, without its message: libraries put their input into messages."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
