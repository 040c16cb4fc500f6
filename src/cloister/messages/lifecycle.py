"""How processes start, and how they say what went wrong: in place of being ready, or with a request.

Only errors' words of our own travel. An error from elsewhere is told by its type and place: libraries put their input
into theirs.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.errors import CloisterError, error_from_code, where_raised
from cloister.messages.generation import Failed, Name
from cloister.placement import Placement, Role

MAX_OPENING = 8192
Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Openings = Annotated[tuple[Annotated[str, Meta(max_length=MAX_OPENING)], ...], Meta(max_length=16)]
"""How prompts begin that are nobody's."""


class Start(Struct, frozen=True, tag="start", forbid_unknown_fields=True):
    """Frontend → service, first of all: the model's folder and the engine's settings as their own JSON."""

    version: int
    name: Name
    path: Path
    settings: Annotated[bytes, Meta(max_length=65536)]


class StartController(Struct, frozen=True, forbid_unknown_fields=True):
    """Command line → controller, as JSON in a memory file: all settings, the model found, when it all began, and the
    descriptor of a socket that keeps the port until somebody listens there."""

    settings: str
    name: Name
    path: Path
    begun: float
    reserved: int | None = None


class StartFailed(Struct, frozen=True, tag="start_failed", forbid_unknown_fields=True):
    """Service → frontend, instead of Ready: why it cannot serve."""

    code: Name
    message: Annotated[str, Meta(max_length=4096)]
    hint: Annotated[str, Meta(max_length=4096)] | None = None


class WeightsPacked(Struct, frozen=True, tag="weights_packed", forbid_unknown_fields=True):
    """Packer → controller: the memory file whose descriptor came with `Start` holds all parts."""

    length: Annotated[int, Meta(ge=1)]


FromPacker = StartFailed | WeightsPacked


class Convert(Struct, frozen=True, tag="convert", forbid_unknown_fields=True):
    """Command line → converter, first of all: the GGUF file, what its manifest says, the empty folder to fill."""

    name: Name
    gguf: Path
    sha256: Annotated[str, Meta(min_length=64, max_length=64)]
    folder: Path


class ConversionProgress(Struct, frozen=True, tag="conversion_progress", forbid_unknown_fields=True):
    """Converter → command line, now and then: the part of the weights that is written."""

    part: Annotated[float, Meta(ge=0, le=1)]


class Converted(Struct, frozen=True, tag="converted", forbid_unknown_fields=True):
    """Converter → command line, last: every byte of the folder is on the disk. Or StartFailed says why not."""


FromConverter = StartFailed | ConversionProgress | Converted


class Ping(Struct, frozen=True, tag="ping", forbid_unknown_fields=True):
    """Owner → process, now and then once it is ready: say Pong when you come to it (process.watchdog)."""


class Pong(Struct, frozen=True, tag="pong", forbid_unknown_fields=True):
    """Process → owner: its loop turns. It answers between two pieces of work, not from a thread beside them."""


ChildId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Fork(Struct, frozen=True, tag="fork", forbid_unknown_fields=True):
    """Controller → template: fork this entry. Descriptors: its control socket, and those it knows by `numbers`."""

    child: ChildId
    entry: Name
    numbers: Annotated[tuple[Annotated[int, Meta(ge=3, le=65535)], ...], Meta(max_length=4)] = ()


class Forked(Struct, frozen=True, tag="forked", forbid_unknown_fields=True):
    """Template → controller, with a pidfd: the child exists. It says itself that it is ready, or hangs up."""

    child: ChildId


class Preload(Start, frozen=True, tag="preload"):
    """Controller → fork server, first, with the sealed weights' descriptor: import, map, be ready to fork. `meeting` is
    the folder where children meet who lets them compute on one device at the same time, if that is there."""

    allow_degraded: bool = False
    meeting: Annotated[str, Meta(max_length=4096)] = ""


class Spawn(Struct, frozen=True, tag="spawn", forbid_unknown_fields=True):
    """Controller → fork server: fork a child. Descriptors: its control socket; for a vault question and answer too, and
    with `weights` the memory of the device where they are; for a service with `disk` the file it may keep blocks in;
    for an attention process with so many `places` the memory of its links."""

    child: ChildId
    role: Role
    disk: bool = False
    places: Annotated[int, Meta(ge=0, le=64)] = 0
    weights: bool = False


class Preloaded(Struct, frozen=True, tag="preloaded", forbid_unknown_fields=True):
    """Fork server → controller: ready. `missing` names the layers of the sandbox this kernel lacks; `placement` says
    where children compute. `openings`: how the model's chat template begins a prompt (detection.openings)."""

    heads: int
    dim: int
    layers: int
    partitionable: bool
    missing: tuple[str, ...] = ()
    placement: Placement = Placement()
    openings: Openings = ()


class Spawned(Struct, frozen=True, tag="spawned", forbid_unknown_fields=True):
    """Fork server → controller, with a pidfd: the child exists. It says itself that it is ready, or hangs up."""

    child: ChildId
    pid: int


ToTemplate = Fork | Ping
FromTemplate = Forked | Pong
ToForkServer = Preload | Spawn | Ping
FromForkServer = StartFailed | Preloaded | Spawned | Pong


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
