"""What goes between client and issuer. Several tokens at once follow draft-ietf-privacypass-batched-tokens: a vector of
requests, and a vector of optional responses."""

from cloister.access.tokens import REQUEST_BYTES, RESPONSE_BYTES
from cloister.errors import TokenInvalid

DIRECTORY = "/.well-known/private-token-issuer-directory"
TOKENS = "/token-request"
ONE = ("application/private-token-request", "application/private-token-response")
BATCH = ("application/private-token-arbitrary-batch-request", "application/private-token-arbitrary-batch-response")


def read_requests(body: bytes) -> list[bytes]:
    rest, requests = _unwrapped(body), []
    while rest:
        requests.append(rest[:REQUEST_BYTES])
        rest = rest[REQUEST_BYTES:]
    return requests


def write_requests(requests: list[bytes]) -> bytes:
    return _wrapped(b"".join(requests))


def write_responses(responses: list[bytes]) -> bytes:
    return _wrapped(b"".join(b"\x01" + each for each in responses))


def read_responses(body: bytes) -> list[bytes]:
    rest, responses = _unwrapped(body), []
    while rest:
        if rest[0] != 1 or len(rest) <= RESPONSE_BYTES:
            raise TokenInvalid("The issuer's answer is malformed.")
        responses.append(rest[1 : 1 + RESPONSE_BYTES])
        rest = rest[1 + RESPONSE_BYTES :]
    return responses


def _wrapped(content: bytes) -> bytes:
    """Behind its length as QUIC writes numbers (RFC 9000 §16), here always in four bytes."""
    return (len(content) | 0x80000000).to_bytes(4) + content


def _unwrapped(data: bytes) -> bytes:
    width = 1 << (data[0] >> 6) if data else 0
    length = int.from_bytes(data[:width]) & ((1 << 8 * width - 2) - 1) if width else 0
    if not width or len(data) != width + length:
        raise TokenInvalid("A batch of tokens is not as long as it says.")
    return data[width:]
