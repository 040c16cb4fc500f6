"""Sends each part of a sealed request to its process (Petridish §4.1). Prompts and their key stay here, unopened, until
the sealed API names the vault's request; forgotten when an answer begins."""

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from cloister.channel.envelope import Envelope
from cloister.channel.ohttp.encapsulation import Form, Header
from cloister.channel.ohttp.keys import document_of
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.requests import Frontend, frontend_of, local, wide
from cloister.errors import (
    ChannelBroken,
    CloisterError,
    MessageExpired,
    PromptTooLong,
    ProtocolError,
    QueueFull,
    ServiceUnavailable,
)
from cloister.fairness import payer_of
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, SealedPart
from cloister.messages.controller_gateway import ExchangeOpened, OpenExchange, Sealed
from cloister.messages.controller_sealed_api import Serve
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import failed
from cloister.messages.prompts import MAX_SEALED_PROMPT_BYTES, LockedPrompt, SealedPrompt

MAX_REQUESTS = 8192
MAX_REQUESTS_OF_ONE = 1024
MAX_BYTES_OF_ONE = 32 * 1024 * 1024  # prompts of one tenant that wait for a vault
MAX_UNKNOWN = 1024
# Of requests whose API key is not checked yet; they do not wait for vaults, so they cannot pile up.
MAX_UNKNOWN_BYTES = 48 * 1024 * 1024
UNKNOWN = ""  # a tenant that is not known yet
_SMALL_BYTES = 4096


@dataclass(eq=False, repr=False)
class SealedRequest:
    """`prompts` and `prompt_key` until its answer begins."""

    frontend: Frontend
    enc: bytes
    prompts: tuple[bytes, ...]
    prompt_key: bytearray
    owner: str = UNKNOWN
    begun: bool = False

    @property
    def bytes(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


class SealedRequests:
    def __init__(self, keys: ChannelKeys) -> None:
        self._keys = keys
        self._sealed_api: Frontend | None = None
        self._requests: dict[int, SealedRequest] = {}
        self._count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()  # by tenant

    # ---- gateways

    def accept(self, gateway: int, frontend: Frontend, sealed: Sealed) -> None:
        number = wide(gateway, sealed.request_id)
        if number in self._requests:
            raise ProtocolError("The gateway sent a message out of turn.")
        try:
            self._serve(number, frontend, sealed.envelope)
        except CloisterError as reason:
            frontend.send(failed(sealed.request_id, reason))

    @property
    def configurations(self) -> bytes:
        return document_of(self._keys.public)

    def open_exchange(self, frontend: Frontend, asked: OpenExchange) -> None:
        """The gateway gets the keys of one exchange, and never the key that they come from."""
        try:
            keys = self._keys.open_exchange(Header.decode(asked.header), Form.CHUNKED if asked.chunked else Form.WHOLE)
        except CloisterError as reason:
            frontend.send(failed(asked.request_id, reason))
        else:
            opened = (keys.request_key, keys.base_nonce, keys.response_secret)
            frontend.send(ExchangeOpened(asked.request_id, *opened))

    def taken(self, gateway: int, message: BytesTaken) -> None:
        number = wide(gateway, message.request_id)
        if self._sealed_api is not None and number in self._requests:
            self._sealed_api.send_soon(replace(message, request_id=number))

    def leave(self, gateway: int, message: CancelSealed) -> None:
        self._abandon(wide(gateway, message.request_id))

    def gateway_gone(self, gateway: int) -> None:
        for number in [one for one in self._requests if frontend_of(one) == gateway]:
            self._abandon(number)

    # ---- the sealed API

    def sealed_api_up(self, sealed_api: Frontend) -> None:
        self._sealed_api = sealed_api

    def sealed_api_gone(self) -> None:
        """No other process can seal the answers under way: they fail."""
        self._sealed_api = None
        self.fail_all(_away())

    def fail_all(self, reason: CloisterError) -> None:
        for number in list(self._requests):
            frontend = self._requests[number].frontend
            self._abandon(number)
            frontend.send(failed(local(number), reason))

    def from_sealed_api(self, message: SealedPart | Failed) -> None:
        number = message.request_id
        if (request := self._requests.get(number)) is None:
            return
        self._begin(request)
        if isinstance(message, Failed):
            request.frontend.send(failed(local(number), _why(message)))
            self._forget(number)
            return
        part = SealedPart(local(number), message.data, message.end)
        if len(part.data) <= _SMALL_BYTES:
            request.frontend.send_soon(part)  # a beat brings parts of many answers: the gateway is woken once
        else:
            request.frontend.send(part)
        if part.end:
            self._forget(number)

    def lock(self, prompt: SealedPrompt, owner: str) -> LockedPrompt:
        """The API key is checked: from here on the request counts for its owner. QueueFull if it has too many."""
        request = self._requests.get(prompt.request_id)
        if request is None or request.begun:
            raise ServiceUnavailable("The sealed request has ended.", hint="Send it again.")
        if prompt.index >= len(request.prompts):
            raise ProtocolError("The sealed API names a prompt that did not come.")
        self._belongs(request, owner)
        data, key = request.prompts[prompt.index], bytearray(request.prompt_key)
        return LockedPrompt(data, key, request.enc, prompt.index, prompt.field)

    # ---- a request's way

    def _serve(self, number: int, frontend: Frontend, data: bytes) -> None:
        if self._sealed_api is None:
            raise _away()
        envelope = Envelope.decode(data)
        size = sum(len(prompt) for prompt in envelope.prompts)
        full = len(self._requests) >= MAX_REQUESTS or self._count[UNKNOWN] >= MAX_UNKNOWN
        if full or self._bytes[UNKNOWN] + size > MAX_UNKNOWN_BYTES:
            raise QueueFull("Too many sealed requests wait already.", retry_after=1)
        if any(len(prompt) > MAX_SEALED_PROMPT_BYTES for prompt in envelope.prompts):
            raise PromptTooLong("A sealed prompt is too long.", hint="Shorten the prompt.")
        keys = self._keys.accept(envelope)
        count = len(envelope.prompts)
        self._sealed_api.send(Serve(number, envelope.enc, envelope.request, count, keys.request, keys.response))
        self._requests[number] = SealedRequest(frontend, envelope.enc, envelope.prompts, bytearray(keys.prompt))
        self._count[UNKNOWN] += 1
        self._bytes[UNKNOWN] += size
        keys.erase()

    def _belongs(self, request: SealedRequest, owner: str) -> None:
        if request.owner == owner:
            return
        if request.owner != UNKNOWN:
            raise ProtocolError("The sealed API names another tenant for a request.")
        size, payer = request.bytes, payer_of(owner)
        if self._count[payer] >= MAX_REQUESTS_OF_ONE or self._bytes[payer] + size > MAX_BYTES_OF_ONE:
            raise QueueFull("Too many of your sealed requests wait already.", retry_after=1)
        request.owner = owner
        for whose, sign in ((UNKNOWN, -1), (payer, 1)):
            self._count[whose] += sign
            self._bytes[whose] += sign * size

    def _begin(self, request: SealedRequest) -> None:
        if not request.begun:
            request.begun = True
            request.prompt_key[:] = bytes(len(request.prompt_key))
            self._bytes -= Counter({payer_of(request.owner): request.bytes})
            request.prompts = ()

    def _forget(self, number: int) -> None:
        request = self._requests.pop(number)
        self._begin(request)
        self._count -= Counter((payer_of(request.owner),))

    def _abandon(self, number: int) -> None:
        if number in self._requests:
            self._forget(number)
            if self._sealed_api is not None:
                self._sealed_api.send(CancelSealed(number))


def _why(failure: Failed) -> CloisterError:
    """With a text from here: the sealed API has keys and answers, and its text would leave in the clear."""
    if failure.code == ChannelBroken.code:
        return ChannelBroken("The sealed request cannot be opened.", hint="Verify the node again and send it again.")
    if failure.code == MessageExpired.code:
        return MessageExpired("The sealed request is not valid now.", hint="Verify the node again and seal it again.")
    return CloisterError("The sealed request failed.", hint="Try again.")


def _away() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The process that answers sealed requests is restarting.", hint="Try again in a few seconds."
    )
