"""The list of a cloud: its nodes, and the keys whose tokens count there. It is in the log: one list for all users.

A node proves with its evidence which list it follows. The client chooses the node by the same list.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.access.node_choice import check_chosen, chosen_node
from cloister.access.token_keys import MOST_BYTES, TokenKeys
from cloister.access.tokens import Token
from cloister.addresses import HttpAddress
from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import read_bounded

if TYPE_CHECKING:
    from cloister.config import GatewaySettings

FORMAT: Literal["cloister-cloud/v1"] = "cloister-cloud/v1"
MOST_NODES = 4096
MOST_CLOUD_BYTES = 1 << 20
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]


class CloudNode(Struct, frozen=True, forbid_unknown_fields=True):
    name: _Name
    url: Annotated[str, Meta(max_length=1024)]


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["cloister-cloud/v1"]
    nodes: Annotated[tuple[CloudNode, ...], Meta(min_length=1, max_length=MOST_NODES)]
    issuer: dict[str, Any]


@dataclass(frozen=True)
class Cloud:
    nodes: tuple[CloudNode, ...]
    token_keys: TokenKeys

    @classmethod
    def decode(cls, data: bytes) -> "Cloud":
        """Only the canonical form is accepted, so that its digest names it."""
        try:
            if len(data) > MOST_CLOUD_BYTES:
                raise EvidenceInvalid("The list of the cloud is too long.")
            found = msgspec.json.decode(data, type=_Document)
            keys = TokenKeys.decode(json.dumps(found.issuer).encode()[: MOST_BYTES + 1])
        except msgspec.MsgspecError:
            raise EvidenceInvalid("The list of the cloud does not decode.") from None
        made = cls(found.nodes, keys)
        if made.encode() != data:
            raise EvidenceInvalid("The list of the cloud is not written canonically.", hint="`cloister cloud make` is.")
        if len({node.name for node in made.nodes}) != len(made.nodes):
            raise EvidenceInvalid("The list of the cloud names a node twice.")
        for node in made.nodes:
            HttpAddress.parse(node.url)
        return made

    def encode(self) -> bytes:
        nodes = [msgspec.to_builtins(node) for node in sorted(self.nodes, key=lambda node: node.name)]
        document = {"format": FORMAT, "issuer": json.loads(self.token_keys.encode()), "nodes": nodes}
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()

    def node_of(self, token: Token) -> CloudNode:
        chosen = chosen_node(token, self._names)
        return next(node for node in self.nodes if node.name == chosen)

    def check(self, token: Token, own: str, now: float) -> None:
        """TokenInvalid unless the token counts now, and names the node `own`."""
        check_chosen(token, self._names, own)
        self.token_keys.check(token, now)

    @property
    def _names(self) -> list[str]:
        return [node.name for node in self.nodes]


def read_cloud(settings: "GatewaySettings") -> Cloud:
    """The list of a node that takes tokens; the node must be in it."""
    assert settings.cloud is not None
    cloud = load_cloud(settings.cloud)
    if settings.node_name not in {node.name for node in cloud.nodes}:
        raise SetupError("--node-name is no node of the list --cloud.", hint="Name one of its nodes.")
    return cloud


def load_cloud(path: Path) -> Cloud:
    try:
        return Cloud.decode(read_bounded(path, MOST_CLOUD_BYTES, hint="`cloister cloud make` writes one."))
    except EvidenceInvalid as wrong:
        raise SetupError(f"{path} is no list of a cloud: {wrong}") from None


def cloud_of(given: Cloud | Path | str | None) -> Cloud:
    if given is None:
        hint = "Its operator publishes it; the log has its hash."
        raise SetupError("An issuer's tokens need the list of the cloud's nodes and token keys.", hint=hint)
    return given if isinstance(given, Cloud) else load_cloud(Path(given))
