"""What commands share that speak to a node: its address, what it must prove, and that it proved it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel

from cloister.config import option

if TYPE_CHECKING:
    from cloister.attest.policy import Policy
    from cloister.client.verification import Verification, VerifiedNode


def node_url() -> Any:
    return option(..., "The node's address; `/v1` may be left out.", argument=True, metavar="URL")


class NodePolicy(BaseModel):
    policy: Path | None = option(
        None, "What the node must prove, in TOML.", metavar="FILE", show_default="real TEEs only"
    )
    allow_software_tee: bool = option(
        False, "Accept a development node, which proves nothing: its operator can read everything."
    )

    def load(self) -> Policy:
        from cloister.attest.policy import load_policy

        return load_policy(self.policy, allow_software_tee=self.allow_software_tee)

    def verified(self, url: str) -> VerifiedNode:
        from cloister.client.verification import VerifiedNode

        node = VerifiedNode(url, self.load())
        if note := software_note(node.verification):
            typer.secho(note, fg="yellow", err=True)
        return node


def software_note(verification: Verification) -> str:
    if verification.verdict.claims.get("tee") != "none":
        return ""
    return "Note: this node attests by its own word (software TEE): its operator can read everything."
