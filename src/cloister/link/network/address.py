"""Where one of our machines listens: `HOST:PORT`, `[IPv6]:PORT`, or `vsock:CID:PORT` for a virtual machine here."""

import re
import socket
from dataclasses import dataclass

from cloister.errors import SetupError

ANY_CID = 2**32 - 1
_HOW = "Write HOST:PORT, [IPv6]:PORT or vsock:CID:PORT (to listen: vsock:any:PORT)."
_VSOCK = re.compile(r"vsock:(any|\d{1,10}):(\d{1,10})")
_TCP = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]\s]+)):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """`host` is a name or an IP address, or for vsock a context id."""

    host: str | int
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        if found := _VSOCK.fullmatch(text):
            cid, port = ANY_CID if found[1] == "any" else int(found[1]), int(found[2])
            if cid <= ANY_CID and port < 2**32:
                return cls(cid, port)
        elif (found := _TCP.fullmatch(text)) and not text.startswith("vsock:") and int(found[3]) < 2**16:
            return cls(found[1] or found[2], int(found[3]))
        raise SetupError(f"{text!r} is not an address.", hint=_HOW)

    def __str__(self) -> str:
        if isinstance(self.host, int):
            return f"vsock:{'any' if self.host == ANY_CID else self.host}:{self.port}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, patience_s: float) -> socket.socket:
        if isinstance(self.host, str):
            return without_delay(socket.create_connection((self.host, self.port), timeout=patience_s))
        connection = _vsock()
        connection.settimeout(patience_s)
        connection.connect((self.host, self.port))
        return connection

    def listen(self) -> socket.socket:
        if isinstance(self.host, int):
            listener = _vsock()
            listener.bind((self.host, self.port))
            listener.listen()
            return listener
        family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((self.host, self.port), family=family)


def address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def without_delay(connection: socket.socket) -> socket.socket:
    """Send small records at once: someone waits for each. Notice within half a minute that a peer vanished."""
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
    return connection


def _vsock() -> socket.socket:
    if not hasattr(socket, "AF_VSOCK"):
        raise OSError("this system has no vsock")
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
