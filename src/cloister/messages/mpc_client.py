"""What the controller and the client say to each other. The client holds a prompt at the level `mpc`: to the controller
it is a vault that never asks for cores, for it computes nothing but shares.

Beside it, where the parties are on the same machine, is the process that keeps those three; it never sees a prompt.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.generation import Cancel, Failed, Name, Tokens
from cloister.messages.lifecycle import Path, StartFailed
from cloister.messages.vault import Confide, Understood


class StartMpcClient(Struct, frozen=True, tag="start_mpc_client", forbid_unknown_fields=True):
    """Controller → client, first: the model whose tokenizer it needs, and the file that says who the parties are."""

    version: int
    name: Name
    path: Path
    parties: Path
    max_context: Annotated[int, Meta(ge=1)]
    vocabulary: Annotated[int, Meta(ge=1)]
    draft_tokens: Annotated[int, Meta(ge=0, le=15)] = 0


class MpcClientReady(Struct, frozen=True, tag="mpc_client_ready", forbid_unknown_fields=True):
    """MpcClient → controller, once: the parties answer, and have the model."""

    version: int


class StartLocalParties(Struct, frozen=True, tag="start_local_parties", forbid_unknown_fields=True):
    """Controller → local parties, first: start three parties here and deal them this model. `folder` is theirs: keys,
    settings and shares; the controller removes it when they have ended."""

    version: int
    name: Name
    path: Path
    folder: Path


class LocalPartiesReady(Struct, frozen=True, tag="local_parties_ready", forbid_unknown_fields=True):
    """Local parties → controller, once: the parties have the model; this file says where they are."""

    parties: Path


ToMpcClient = StartMpcClient | Confide | Cancel
FromMpcClient = MpcClientReady | StartFailed | Understood | Tokens | Failed
FromLocalParties = LocalPartiesReady | StartFailed
