"""What the gateway and the controller say to each other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.generation import (
    Accepted,
    AskStats,
    Cancel,
    Failed,
    Name,
    RequestId,
    SamplingParams,
    Stats,
    Submit,
    Tokens,
    _Discreet,
)
from cloister.messages.lifecycle import Path, StartFailed
from cloister.messages.prompts import PromptBytes
from cloister.messages.service import AskView, View
from cloister.messages.vault import VaultLevel


class Ask(_Discreet, Struct, frozen=True, tag="ask", forbid_unknown_fields=True):
    """Gateway → controller: serve this prompt in a vault. (At `open` the gateway sends Submit, tokens and all.)

    Requests of one tenant with one `session` share a vault. With `keep` it outlives its requests until it is idle for
    too long or EndSession comes; without, it ends with the last of them. `group` puts tenants that trust each other
    into one vault (Petridish §7.2): it comes from the keys file, never from a request.
    """

    request_id: RequestId
    tenant: Name
    level: VaultLevel
    session: Name
    keep: bool
    prompt: PromptBytes
    params: SamplingParams
    group: Annotated[str, Meta(max_length=256)] = ""


class EndSession(Struct, frozen=True, tag="end_session", forbid_unknown_fields=True):
    """Gateway → controller: forget this session now."""

    tenant: Name
    session: Name
    group: Annotated[str, Meta(max_length=256)] = ""


class StartGateway(Struct, frozen=True, tag="start_gateway", forbid_unknown_fields=True):
    """Controller → gateway, first: its settings as their own JSON, and the model whose tokenizer it needs."""

    version: int
    settings: Annotated[bytes, Meta(max_length=65536)]
    name: Name
    path: Path
    created: int


class Listening(Struct, frozen=True, tag="listening", forbid_unknown_fields=True):
    """Gateway → controller, once: where users reach it."""

    url: Annotated[str, Meta(max_length=1024)]


class Serving(Struct, frozen=True, tag="serving", forbid_unknown_fields=True):
    """Controller → gateway, once: what is served and which levels work here."""

    version: int
    vocabulary: int
    max_context: int
    kv_blocks: int
    block_tokens: int
    kernels: str
    levels: tuple[Literal["open", "partitioned", "isolated"], ...]
    missing_layers: tuple[str, ...] = ()


FromGateway = Listening | StartFailed | Submit | Ask | Cancel | AskStats | AskView | EndSession
ToGateway = StartGateway | Serving | Accepted | Tokens | Failed | Stats | View
