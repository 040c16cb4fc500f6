"""A cloud of one node that is there and one that is not, with an issuer whose tokens count there."""

from __future__ import annotations

import socket
from pathlib import Path

from cloister.access.batches import TOKENS
from cloister.access.cloud import Cloud, CloudNode
from cloister.access.issuing import DAY_S, Issuer
from cloister.access.tokens import PendingToken, Token


class TestCloud:
    __test__ = False

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        self.folder = folder
        self.issuer = Issuer(folder / "issuer", "issuer", TOKENS, per_day=10_000, period_s=7 * DAY_S)
        nodes = (CloudNode("here", f"http://127.0.0.1:{port}"), CloudNode("away", "http://127.0.0.1:9"))
        self.list = Cloud(nodes, self.issuer.keys)
        self.file = folder / "cloud.json"
        self.file.write_bytes(self.list.encode())
        self.arguments = (
            *("--port", str(port), "--cloud", str(self.file), "--node-name", "here"),
            *("--spent", str(folder / "spent")),
        )

    def token(self, node: str = "here") -> Token:
        """A new token that names this node."""
        while True:
            keys = self.issuer.keys
            pending = PendingToken.draw(keys.all[-2].key, keys.challenge)
            [answer] = self.issuer.issue("tester", [pending.request])
            token = pending.finish(answer)
            if self.list.node_of(token).name == node:
                return token
