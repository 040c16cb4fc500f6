"""Between the command line and the converter of a GGUF file."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.lifecycle import StartFailed
from cloister.messages.types import Message, Name, Path


class Convert(Message, frozen=True):
    """Command line → converter, first: the GGUF file, its manifest's name and hash, the empty folder to fill."""

    name: Name
    gguf: Path
    sha256: Annotated[str, Meta(min_length=64, max_length=64)]
    folder: Path


class ConversionProgress(Message, frozen=True):
    """Converter → command line, now and then: the part of the weights that is written."""

    part: Annotated[float, Meta(ge=0, le=1)]


class Converted(Message, frozen=True):
    """Converter → command line, last: every byte of the folder is on the disk. Otherwise StartFailed says why not."""


FromConverter = StartFailed | ConversionProgress | Converted
