"""What the controller and the clerk say to each other. The clerk holds a prompt at the level `mpc`: to the controller
it is a vault that never asks for cores, for it computes nothing but shares.

Beside it, where the parties are on the same machine, is the process that keeps those three; it never sees a prompt.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.generation import Cancel, Failed, Name, Tokens
from cloister.messages.lifecycle import Path, StartFailed
from cloister.messages.vault import Confide, Understood


class StartClerk(Struct, frozen=True, tag="start_clerk", forbid_unknown_fields=True):
    """Controller → clerk, first: the model whose tokenizer it needs, and the file that says who the parties are."""

    version: int
    name: Name
    path: Path
    parties: Path
    max_context: Annotated[int, Meta(ge=1)]
    vocabulary: Annotated[int, Meta(ge=1)]
    draft_tokens: Annotated[int, Meta(ge=0, le=15)] = 0


class ClerkReady(Struct, frozen=True, tag="clerk_ready", forbid_unknown_fields=True):
    """Clerk → controller, once: the parties answer, and have the model."""

    version: int


class StartTrio(Struct, frozen=True, tag="start_trio", forbid_unknown_fields=True):
    """Controller → trio, first: start three parties on this machine and deal them this model. `folder` is theirs: keys,
    settings and shares; the controller removes it when they have ended."""

    version: int
    name: Name
    path: Path
    folder: Path


class TrioReady(Struct, frozen=True, tag="trio_ready", forbid_unknown_fields=True):
    """Trio → controller, once: the parties have the model; this file says where they are."""

    parties: Path


ToClerk = StartClerk | Confide | Cancel
FromClerk = ClerkReady | StartFailed | Understood | Tokens | Failed
ToldByTrio = TrioReady | StartFailed
