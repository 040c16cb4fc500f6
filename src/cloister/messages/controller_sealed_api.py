"""Between the controller and the sealed API, which gets the inner request's and the answer's keys, no prompt."""

from typing import Annotated, Literal

from msgspec import Meta

from cloister.messages.controller_frontend import Ask, BytesTaken, CancelSealed, FromFrontend, SealedPart, ToFrontend
from cloister.messages.controller_gateway import MAX_SEALED_BYTES
from cloister.messages.generation import Failed
from cloister.messages.prompts import Enc, RequestKey, SealedPrompt
from cloister.messages.types import Message, RequestMessage

MOST_PROMPTS = 128


class Serve(RequestMessage, frozen=True):
    """Controller → sealed API: answer this sealed request with its number of prompts. SealedPart or Failed follows."""

    enc: Enc
    request: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]
    prompts: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)]
    request_key: RequestKey
    response_key: RequestKey


class AskSealed(Message, frozen=True):
    """Sealed API → controller. Not the gateway: it would get the answer to a prompt that its user did not send."""

    ask: Ask
    prompt: SealedPrompt


class SealedApiReady(Message, frozen=True):
    """Sealed API → controller, once: sealed off, and ready for requests."""


ErrorKind = Literal[
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "MemoryError",
    "OSError",
    "RuntimeError",
    "TypeError",
    "UnicodeError",
    "ValueError",
    "other",
]


class ErrorReport(Message, frozen=True):
    """Sealed API → controller: an error for the log, by its kind. No text: it could hold a key."""

    kind: ErrorKind


ToSealedApi = ToFrontend | Serve | BytesTaken | CancelSealed
FromSealedApi = FromFrontend | Ask | SealedApiReady | ErrorReport | AskSealed | SealedPart | Failed
