"""Between the controller and the packer, which writes a model's weights into one memory file."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.lifecycle import StartFailed
from cloister.messages.types import Message, Name, Path, Settings


class Start(Message, frozen=True):
    """Controller → packer, first, with the memory file's descriptor: the model's folder and the engine's settings."""

    name: Name
    path: Path
    settings: Settings


class WeightsPacked(Message, frozen=True):
    """Packer → controller: the memory file holds all parts of the weights."""

    length: Annotated[int, Meta(ge=1)]


FromPacker = StartFailed | WeightsPacked
