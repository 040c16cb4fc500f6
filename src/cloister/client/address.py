"""Where a node listens, from what a user types, and a question to it: bounded in time and size, telling nothing of who
asks.

TLS hides who asks from the network; trust does not rest on it, and answers are not checked here.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

import httpx2
import msgspec

from cloister.attest.evidence import MAX_EVIDENCE_BYTES, NodeEvidence, read_evidence
from cloister.errors import CloisterError, EvidenceInvalid, ServiceUnavailable, SetupError

EXAMPLE = "Write it like https://node.example or http://127.0.0.1:8000."


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node behind http(s): `prefix` is what stands before `/v1`, where somebody put the node below a path."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> NodeAddress:
        """Accepts `https://host`, with or without a port, a path before `/v1`, and `/v1` itself."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port
            parts.netloc.encode("ascii")
        except ValueError:
            raise SetupError("The node's URL cannot be read.", hint=EXAMPLE) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError("The node's URL must begin with http:// or https:// and name a host.", hint=EXAMPLE)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise SetupError("The node's URL must hold no user name, query or fragment.", hint=EXAMPLE)
        if not all("!" <= each <= "~" for each in parts.path):
            raise SetupError("The path of the node's URL holds what a path may not.", hint=EXAMPLE)
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), prefix)

    @property
    def authority(self) -> str:
        """What goes into the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def path(self, endpoint: str) -> str:
        """Where an endpoint such as `/v1/sealed` is found on that server."""
        return self.prefix + endpoint

    def endpoint(self, path: str) -> str:
        """The endpoint that a path on that server leads to: what is meant for the node has no prefix any more."""
        return path.removeprefix(self.prefix) if path.startswith(f"{self.prefix}/") else path

    def url(self, endpoint: str) -> str:
        """The whole URL of an endpoint."""
        return f"{self}{endpoint}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


def names_this_machine(host: str) -> bool:
    """Whether a host is a loopback address or `localhost`; any other name might be anything, so: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_to(address: NodeAddress) -> ssl.SSLContext:
    """The context for https; for http one that trusts nobody, which is cheap to make and of no use by mistake."""
    if address.scheme == "https":
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


ENDPOINT = "/v1/evidence"
CONNECT_S = 5.0
WHOLE_S = 30.0
Headers = tuple[tuple[str, str], ...]
_BUSY = (408, 429, 502, 503, 504)
_HINT = "Check the address; `cloister serve` starts a node."


def ask_for_evidence(address: NodeAddress, nonce: bytes, since: int) -> NodeEvidence:
    """The node's evidence for this nonce, with the log proven from `since` entries on.

    ServiceUnavailable if there is no answer; EvidenceInvalid if the answer is no evidence.
    """
    too_large = EvidenceInvalid(f"Evidence may have at most {MAX_EVIDENCE_BYTES} bytes.")
    headers = (("Content-Type", "application/json"), ("Accept", "application/json"))
    question = msgspec.json.encode({"nonce": nonce.hex(), "since": since})
    try:
        response, body = post(address, ENDPOINT, headers, question, WHOLE_S, MAX_EVIDENCE_BYTES, too_large)
    except httpx2.TimeoutException:
        raise ServiceUnavailable(f"{address} did not show its evidence in time.", hint=_HINT) from None
    except httpx2.RequestError as wrong:
        what = "Nothing answers" if isinstance(wrong, httpx2.ConnectError) else "No proper answer came"
        raise ServiceUnavailable(f"{what} at {address}.", hint=_HINT) from None
    if response.status_code in _BUSY:
        raise ServiceUnavailable(f"{address} cannot answer now (HTTP {response.status_code}).", hint="Try again soon.")
    if response.status_code != 200:
        raise EvidenceInvalid(
            f"{address} shows no evidence (HTTP {response.status_code}).", hint="Is that a Cloister node?"
        )
    return read_evidence(body)


def post(
    address: NodeAddress,
    endpoint: str,
    headers: Headers,
    content: bytes,
    whole_s: float,
    limit: int,
    too_large: CloisterError,
) -> tuple[httpx2.Response, bytes]:
    """The node's answer and its body, which may have so many bytes; httpx2's RequestError if none comes in time."""
    timeout = httpx2.Timeout(whole_s, connect=CONNECT_S).as_dict()
    request = httpx2.Request(
        "POST", address.url(endpoint), headers=headers, content=content, extensions={"timeout": timeout}
    )
    until = monotonic() + whole_s
    body = bytearray()
    with httpx2.HTTPTransport(verify=tls_to(address)) as wire:
        response = wire.handle_request(request)
        assert isinstance(response.stream, httpx2.SyncByteStream)
        for piece in response.stream:
            body += piece
            if len(body) > limit:
                raise too_large
            if monotonic() > until:
                raise httpx2.ReadTimeout("the answer comes too slowly")
        response.close()
    return response, bytes(body)
