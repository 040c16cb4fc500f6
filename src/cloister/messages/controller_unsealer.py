"""Between the controller and the unsealer, which decrypts sealed weights into memory."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.lifecycle import StartFailed
from cloister.messages.types import Digest, Message, Path, SilentRepr


class Unseal(SilentRepr, Message, frozen=True):
    """Controller → unsealer, first: decrypt this file, which this provider must have signed, into memory."""

    path: Path
    provider: Annotated[str, Meta(max_length=1024)]
    content_key: Digest


class Unsealed(Message, frozen=True):
    """Unsealer → controller, with the descriptor of a folder that lies in memory alone: the model is whole in there."""


class Packed(Message, frozen=True):
    """Controller → unsealer: the parameters' files are not needed after this."""


class Locked(Message, frozen=True):
    """Unsealer → controller, last: the parameters' files are gone, and the folder cannot be written."""


FromUnsealer = StartFailed | Unsealed | Locked
ToUnsealer = Unseal | Packed
