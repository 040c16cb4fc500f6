"""What the controller says to the MPC client and to the process that keeps local parties, and what they answer.

The MPC client gets prompts in the messages that a vault gets. The keeper of local parties never gets one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.generation import Cancel, Failed, Name, Tokens
from cloister.messages.lifecycle import Path, Ping, Pong, StartFailed
from cloister.messages.vault import AssignPrompt, PromptAccepted


class StartMpcClient(Struct, frozen=True, tag="start_mpc_client", forbid_unknown_fields=True):
    """Controller → MPC client, first: the model whose tokenizer it needs, and the file that names the parties. Where
    `identity` is not empty, the parties must have it: users saw it in the node's evidence."""

    version: int
    name: Name
    path: Path
    parties: Path
    max_context: Annotated[int, Meta(ge=1)]
    vocabulary: Annotated[int, Meta(ge=1)]
    draft_tokens: Annotated[int, Meta(ge=0, le=15)] = 0
    identity: Annotated[bytes, Meta(max_length=32)] = b""
    cache: Literal["full", "mpcache"] = "full"


class MpcClientReady(Struct, frozen=True, tag="mpc_client_ready", forbid_unknown_fields=True):
    """MPC client → controller, once: the parties answer, and have the model."""

    version: int


class StartLocalParties(Struct, frozen=True, tag="start_local_parties", forbid_unknown_fields=True):
    """Controller → local parties, first: start three parties here and deal them this model. They keep their keys,
    settings and shares in `folder`, which the controller removes when they have ended."""

    version: int
    name: Name
    path: Path
    folder: Path


class LocalPartiesReady(Struct, frozen=True, tag="local_parties_ready", forbid_unknown_fields=True):
    """Local parties → controller, once: the parties have the model; this file says where they are."""

    parties: Path


ToMpcClient = StartMpcClient | AssignPrompt | Cancel | Ping
FromMpcClient = MpcClientReady | StartFailed | PromptAccepted | Tokens | Failed | Pong
ToLocalParties = StartLocalParties | Ping
FromLocalParties = LocalPartiesReady | StartFailed | Pong
