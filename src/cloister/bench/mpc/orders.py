"""What the bench asks of the parties it measures, and what they answer. Shares travel as files of a private folder."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(max_length=4096)]
ProtocolName = Literal["aby3", "cheetah"]


class Join(Struct, frozen=True, tag="join", forbid_unknown_fields=True):
    """First: which party this is, and where all of them listen."""

    rank: Annotated[int, Meta(ge=0, le=2)]
    addresses: Annotated[tuple[Name, ...], Meta(min_length=2, max_length=3)]
    protocol: ProtocolName


class Keep(Struct, frozen=True, tag="keep", forbid_unknown_fields=True):
    """Hold the share in this file under a name."""

    name: Name
    file: Name


class Run(Struct, frozen=True, tag="run", forbid_unknown_fields=True):
    """Run the executables in these files, one after another; the log says what each cost."""

    files: Names


class Show(Struct, frozen=True, tag="show", forbid_unknown_fields=True):
    """Write the share held under a name to this file."""

    name: Name
    file: Name


class Drop(Struct, frozen=True, tag="drop", forbid_unknown_fields=True):
    """Forget these."""

    names: Names


class Done(Struct, frozen=True, tag="done", forbid_unknown_fields=True):
    """It was done. For runs: the processor's time that each took."""

    cpu_seconds: Annotated[tuple[float, ...], Meta(max_length=4096)] = ()


class Failed(Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """It was not; SPU's words, which speak of shapes and lines only."""

    reason: Annotated[str, Meta(max_length=2000)]


class ShareFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A share as it lies in a file."""

    meta: bytes
    chunks: list[bytes]


Order = Join | Keep | Run | Show | Drop
Answer = Done | Failed
