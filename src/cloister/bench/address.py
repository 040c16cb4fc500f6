"""Where a server listens, from what a user types. Knows nothing of what is asked there."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from cloister.errors import SetupError

EXAMPLE = "Write it like http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """An http(s) server: `prefix` is what stands before `/v1`, usually nothing."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Accepts `http://host:port`, with or without a trailing `/v1`."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port
        except ValueError:
            raise SetupError("That URL cannot be read.", hint=f"{EXAMPLE}.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError("The URL must begin with http:// or https:// and name a host.", hint=f"{EXAMPLE}.")
        if parts.username or parts.query or parts.fragment:
            raise SetupError("The URL must hold no user name, query or fragment.", hint=f"{EXAMPLE}.")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), prefix)

    @classmethod
    def on_free_port(cls) -> ServerAddress:
        """One on this machine that nobody listens at now, for a server that is about to be started."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return cls("http", "127.0.0.1", int(probe.getsockname()[1]))

    @property
    def authority(self) -> str:
        """What goes into the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def path(self, endpoint: str) -> str:
        """The path of an endpoint such as `/v1/models`."""
        return self.prefix + endpoint

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"
