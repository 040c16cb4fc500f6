"""HTTP requests to a node in the clear, for its evidence and for key releases: bounded in time and size. Unverified."""

from __future__ import annotations

import ssl
from time import monotonic

import httpx2
import msgspec

from cloister.addresses import HttpAddress
from cloister.attest.evidence import MAX_EVIDENCE_BYTES, NodeEvidence, read_evidence
from cloister.errors import CloisterError, EvidenceInvalid, ServiceUnavailable


def tls_to(address: HttpAddress) -> ssl.SSLContext:
    """The context for https. For http one without trusted roots: cheap, and useless if it is used by mistake."""
    if address.scheme == "https":
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


ENDPOINT = "/v1/evidence"
CONNECT_S = 5.0
WHOLE_S = 30.0
Headers = tuple[tuple[str, str], ...]
_BUSY = (408, 429, 502, 503, 504)
_HINT = "Check the address; `cloister serve` starts a node."


def ask_for_evidence(address: HttpAddress, nonce: bytes, since: int) -> NodeEvidence:
    """`since`: the log is proven from this number of entries on."""
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
    address: HttpAddress,
    endpoint: str,
    headers: Headers,
    content: bytes,
    whole_s: float,
    limit: int,
    too_large: CloisterError,
) -> tuple[httpx2.Response, bytes]:
    """The node's answer and its body of at most `limit` bytes; httpx2's RequestError if none comes in time."""
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
