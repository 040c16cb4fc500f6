"""Addresses of http(s) servers as people type them, and whether one is this machine's own."""

import ipaddress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from cloister.errors import SetupError

EXAMPLE = "Write it like https://node.example or http://127.0.0.1:8000."


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """`prefix` is the path before `/v1`, if there is one."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accepts `https://host`, with or without a port, a path before `/v1`, and `/v1` itself."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port
            parts.netloc.encode("ascii")
        except ValueError:
            raise SetupError("The server's URL cannot be read.", hint=EXAMPLE) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError("The server's URL must begin with http:// or https:// and name a host.", hint=EXAMPLE)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise SetupError("The server's URL must hold no user name, query or fragment.", hint=EXAMPLE)
        if not all("!" <= each <= "~" for each in parts.path):
            raise SetupError("The path of the server's URL has characters that a path may not have.", hint=EXAMPLE)
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), prefix)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def resource(self) -> str:
        """The path at an oblivious relay of what goes on to this server."""
        return f"/{self.authority}{self.prefix}"

    def path(self, endpoint: str) -> str:
        """The path of an endpoint such as `/v1/sealed` on that server."""
        return self.prefix + endpoint

    def endpoint(self, path: str) -> str:
        return path.removeprefix(self.prefix) if path.startswith(f"{self.prefix}/") else path

    def url(self, endpoint: str) -> str:
        return f"{self}{endpoint}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. False for every name other than localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
