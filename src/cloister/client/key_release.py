"""The provider's half of Petridish §5: verify the node, then seal the weights' key to its verified channel key."""

import httpx2

from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy
from cloister.channel.envelope import release_to
from cloister.client.message import MAX_REFUSAL_BYTES, OUTER_HEADERS, is_sealed, read_refusal
from cloister.client.verification import Verification, exchange, verify
from cloister.errors import ChannelBroken, ChannelKeyUnknown, ServiceUnavailable, SetupError

ENDPOINT = "/v1/weights/key"
WHOLE_S = 60.0


def release_key(url: str, content_key: bytes, policy: Policy) -> Verification:
    """Release the key to the node if it passes the policy. Returns only if the node has the key."""
    address = HttpAddress.parse(url)
    verification = verify(address, policy)
    try:
        _send(address, verification.channel_key, content_key)
    except ChannelKeyUnknown:
        message = "The node started again since it was verified, and did not get the key."
        raise ChannelKeyUnknown(message, hint="Release it again.") from None
    return verification


def _send(address: HttpAddress, channel_key: bytes, content_key: bytes) -> None:
    release = release_to(channel_key, content_key)
    too_large = ChannelBroken("The node's answer to the key is too long to be one.")
    try:
        asked = ("POST", address, ENDPOINT, OUTER_HEADERS, release.message)
        response, body = exchange(*asked, WHOLE_S, MAX_REFUSAL_BYTES, too_large)
    except httpx2.RequestError as wrong:
        hint = "Whether it has the key is not known: verify it, and release the key again."
        raise ServiceUnavailable(f"No proper answer came from {address} ({type(wrong).__name__}).", hint=hint) from None
    status = response.status_code
    if is_sealed(status, response.headers.get("content-type", "")):
        release.confirm(body)
        return
    if status in (404, 405):
        raise ServiceUnavailable("The node does not wait for a key: it serves already, or has no sealed weights.")
    refusal = read_refusal(status, "", body)
    if status == 400:
        hint = "Use the key that they were sealed with."
        raise SetupError("The node says that this is not the key of its weights.", hint=hint)
    raise ServiceUnavailable(refusal.message)
