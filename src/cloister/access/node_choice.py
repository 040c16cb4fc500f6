"""Which node a token may be spent at: rendezvous hashing of its nonce over a list of nodes that all users share.

The nonce is the client's own random number, which its issuer never sees: neither the issuer, a relay, a
balancer nor a node can move a chosen user's request to a chosen node. A node refuses tokens that name another node, so
its own record of spent tokens is complete.
"""

import hashlib
from collections.abc import Sequence

from cloister.access.tokens import Token
from cloister.errors import TokenInvalid

_LABEL = b"cloister-node-choice/v1"


def chosen_node(token: Token, nodes: Sequence[str]) -> str:
    """The node of the highest hash; each has the same chance, and one that leaves moves its own tokens alone."""
    if not nodes or len(set(nodes)) != len(nodes):
        raise TokenInvalid("The list of nodes is empty, or names a node twice.")
    return max(nodes, key=lambda node: _weight(token.nonce, node))


def check_chosen(token: Token, nodes: Sequence[str], own: str) -> None:
    if chosen_node(token, nodes) != own:
        raise TokenInvalid("The token names another node.", hint="Choose the node by the current list of nodes.")


def _weight(nonce: bytes, node: str) -> bytes:
    return hashlib.sha256(_LABEL + len(nonce).to_bytes(2) + nonce + node.encode()).digest()
