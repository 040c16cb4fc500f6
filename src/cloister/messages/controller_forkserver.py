"""Between the controller and the fork server, which has torch and the model loaded and forks what computes."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.controller_packer import Start
from cloister.messages.controller_template import ChildId
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import Message, Openings
from cloister.placement import Placement, Role


class Preload(Start, frozen=True):
    """Controller → fork server, first, with the sealed weights. `meeting`: the folder of MPS, if any."""

    allow_degraded: bool = False
    meeting: Annotated[str, Meta(max_length=4096)] = ""


class Spawn(Message, frozen=True):
    """With a control socket, and a vault's link (and `weights` on a device) or an attention process's `slots`."""

    child: ChildId
    role: Role
    slots: Annotated[int, Meta(ge=0, le=64)] = 0
    weights: bool = False


class Preloaded(Message, frozen=True):
    """Fork server → controller: ready. `missing`: layers of the sandbox that this kernel lacks."""

    heads: int
    dim: int
    layers: int
    partitionable: bool
    missing: tuple[str, ...] = ()
    placement: Placement = Placement()
    openings: Openings = ()


class Spawned(Message, frozen=True):
    """Fork server → controller, with a pidfd: the child exists. The child reports that it is ready, or hangs up."""

    child: ChildId


ToForkServer = Preload | Spawn | Ping
FromForkServer = StartFailed | Preloaded | Spawned | Pong
