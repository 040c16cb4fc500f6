"""One user's connection to a server, and what arrived on it when. Arrivals are read after the response's
end: parsing takes cores from a server on the same machine."""

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from time import perf_counter
from typing import Any, Literal

import msgspec

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError, ServiceUnavailable, SetupError, Unauthorized

READ_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
NOT_OPENAI_HINT = "Give the address of an OpenAI-compatible server, such as one started with `cloister serve`."


def on_free_port() -> HttpAddress:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return HttpAddress("http", "127.0.0.1", int(probe.getsockname()[1]))


@dataclass(slots=True)
class Exchange:
    """`arrivals` pairs the time of each piece of the body with it."""

    sent: float
    status: int = 0
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.arrivals)


class Connection:
    """Sends one request at a time, each on a new line. No answer takes much longer than `timeout_s`."""

    def __init__(self, address: HttpAddress, api_key: str | None = None, timeout_s: float = 300.0) -> None:
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        self._http = kind(address.host, address.port, timeout=timeout_s)
        self._path, self._timeout_s = address.path, timeout_s
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def exchange(self, method: Literal["GET", "POST", "DELETE"], endpoint: str, body: bytes = b"") -> Exchange:
        """Waits for the end of the response. OSError when the line fails, ProtocolError when it is not HTTP."""
        exchange = Exchange(perf_counter())
        try:
            self._http.request(method, self._path(endpoint), body, self._headers)
            self._read(exchange)
        except IncompleteRead:
            raise ConnectionResetError("closed before the response ended") from None
        except HTTPException as wrong:
            if isinstance(wrong, OSError):  # closed before a response began
                raise
            raise ProtocolError("The server does not speak HTTP/1.1.") from None
        finally:
            self.close()
        return exchange

    def _read(self, exchange: Exchange) -> None:
        with self._http.getresponse() as reply:
            exchange.status, size = reply.status, 0
            while piece := reply.read1(READ_BYTES):
                exchange.arrivals.append((perf_counter(), piece))
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise ProtocolError("The server's response does not end.")
                if perf_counter() - exchange.sent > self._timeout_s:
                    raise TimeoutError
            if reply.length:
                raise IncompleteRead(b"")

    def close(self) -> None:
        """A server then stops what it was asked on it, and a thread that waits for the answer goes on."""
        if (line := self._http.sock) is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._http.close()


def first_model(address: HttpAddress, api_key: str | None, timeout_s: float = 10.0) -> dict[str, Any]:
    """As the server lists it. Raises an error a user can act on when there is no such server."""
    try:
        answer = Connection(address, api_key, timeout_s).exchange("GET", "/v1/models")
    except OSError:
        raise ServiceUnavailable(
            f"Nothing answers at {address}.", hint="Start a server with `cloister serve`, or check its address."
        ) from None
    except ProtocolError as wrong:
        raise SetupError(f"{address}: {wrong.message}", hint=NOT_OPENAI_HINT) from None
    if answer.status in (401, 403):
        raise Unauthorized(f"{address} refuses the API key.", hint="Set CLOISTER_API_KEY or give --api-key-file.")
    try:
        listed: dict[str, Any] = msgspec.json.decode(answer.body, type=dict[str, Any])["data"][0]
        return {**listed, "id": str(listed["id"])}
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
        raise SetupError(
            f"{address} does not list its models as OpenAI's API does (HTTP {answer.status}).", hint=NOT_OPENAI_HINT
        ) from None
