"""Between the controller and a template: a process with code loaded and no data, which forks other processes."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.lifecycle import Ping, Pong
from cloister.messages.types import Message, Name

ChildId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Fork(Message, frozen=True):
    """Controller → template: fork this entry. Descriptors: its control socket, and those it knows by `numbers`."""

    child: ChildId
    entry: Name
    numbers: Annotated[tuple[Annotated[int, Meta(ge=3, le=65535)], ...], Meta(max_length=4)] = ()


class Forked(Message, frozen=True):
    """Template → controller, with a pidfd: the child exists. The child itself reports that it is ready, or hangs up."""

    child: ChildId


ToTemplate = Fork | Ping
FromTemplate = Forked | Pong
