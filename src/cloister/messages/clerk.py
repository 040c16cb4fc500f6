"""What the controller and the clerk say to each other. The clerk holds a prompt at the level `mpc`: to the controller
it is a vault that never asks for the floor, for it computes nothing but shares."""

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


class ClerkReady(Struct, frozen=True, tag="clerk_ready", forbid_unknown_fields=True):
    """Clerk → controller, once: the parties answer, and have the model."""

    version: int


ToClerk = StartClerk | Confide | Cancel
FromClerk = ClerkReady | StartFailed | Understood | Tokens | Failed
