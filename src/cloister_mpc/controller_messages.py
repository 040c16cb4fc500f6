"""Controller ↔ MPC client (which gets prompts as a vault does) and keeper of local parties (which gets none)."""

from typing import Annotated, Literal

from msgspec import Meta

from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.types import Message, Name, Path


class StartMpcClient(Message, frozen=True):
    """First: the model of its tokenizer, the file of the parties. With `identity`, those that the evidence names."""

    version: int
    name: Name
    path: Path
    parties: Path
    max_context: Annotated[int, Meta(ge=1)]
    vocabulary: Annotated[int, Meta(ge=1)]
    draft_tokens: Annotated[int, Meta(ge=0, le=15)] = 0
    identity: Annotated[bytes, Meta(max_length=32)] = b""
    cache: Literal["full", "mpcache"] = "full"


class MpcClientReady(Message, frozen=True):  # MPC client → controller, once: the parties answer, and have the model
    version: int


class StartLocalParties(Message, frozen=True):
    """First: start three parties here, deal them this model. The controller removes `folder` when they have ended."""

    version: int
    name: Name
    path: Path
    folder: Path


class LocalPartiesReady(Message, frozen=True):
    """Local parties → controller, once: the parties have the model; this file says where they are."""

    parties: Path


ToMpcClient = StartMpcClient | AssignPrompt | Cancel | Ping
FromMpcClient = MpcClientReady | StartFailed | PromptAccepted | Tokens | Failed | Pong
ToLocalParties = StartLocalParties | Ping
FromLocalParties = LocalPartiesReady | StartFailed | Pong
