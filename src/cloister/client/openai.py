"""OpenAI's clients, sealed to a verified node; what would bypass the seal is refused. `obfuscate` hides a prompt among
made-up ones, with `insecure_plaintext` at any server, in the clear."""

import os
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import httpx2
import openai

from cloister.access.cloud import Cloud, cloud_of
from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy, load_policy
from cloister.client.cloud_transport import CloudAccess, CloudTransport
from cloister.client.obfuscating_transport import AsyncObfuscatingTransport, plain_wire
from cloister.client.oblivious import verified_node
from cloister.client.sealed_transport import AsyncSealedTransport, BlockingTransport
from cloister.client.tokens import TokenSource
from cloister.client.verification import Verification, VerifiedNode
from cloister.errors import ChannelBroken, CloisterError, SetupError, VerificationFailed
from cloister.obfuscation.requests import Obfuscation


class _OfBothFamilies(openai.APIConnectionError, CloisterError):
    """An error that programs catch as the SDK's or as Cloister's. The SDK does not try again."""

    code = CloisterError.code  # the SDK's own class says None

    def __init__(self, error: CloisterError, request: httpx2.Request) -> None:
        openai.APIConnectionError.__init__(self, message=str(error), request=request)
        self.code, self.hint = error.code, None
        self.checks = getattr(error, "checks", ())


class ChannelBrokenError(_OfBothFamilies, ChannelBroken):
    """An answer that was altered or cut off."""

    code = ChannelBroken.code


class NodeNotVerifiedError(_OfBothFamilies, VerificationFailed):
    """A node that could not be verified again. Nothing was sent to it."""

    code = VerificationFailed.code


Server = VerifiedNode | CloudAccess | str


class HttpClient(httpx2.Client):
    """The SDK's HTTP client: it sends to one verified node, or obfuscated to one URL, and nowhere else."""

    def __init__(self, server: Server, timeout: Any, obfuscate: Obfuscation | None) -> None:
        self.node = server if isinstance(server, VerifiedNode) else None
        wire = BlockingTransport(_transport(server, obfuscate))
        super().__init__(transport=wire, timeout=timeout, **_only_to(server))


class AsyncHttpClient(httpx2.AsyncClient):
    def __init__(self, server: Server, timeout: Any, obfuscate: Obfuscation | None) -> None:
        self.node = server if isinstance(server, VerifiedNode) else None
        super().__init__(transport=_transport(server, obfuscate), timeout=timeout, **_only_to(server))


class _Verified:
    _http_kind: ClassVar[type[HttpClient | AsyncHttpClient]]

    def __init__(
        self,
        base_url: str | httpx2.URL,
        *,
        policy: Policy | Path | str | None = None,
        allow_software_tee: bool = False,
        relay: str | None = None,
        issuer: str | None = None,
        cloud: Cloud | Path | str | None = None,
        obfuscate: Obfuscation | None = None,
        insecure_plaintext: bool = False,
        timeout: Any = openai.DEFAULT_TIMEOUT,
        http_client: httpx2.Client | httpx2.AsyncClient | None = None,
        **options: Any,
    ) -> None:
        """`policy` is a file or a Policy; None: the default. `relay`: the URL of an oblivious relay, then the only way
        to the node. `issuer`: the URL of an issuer, which alone gets the API key; with the list `cloud`, requests pay
        with tokens and go to the node that each token names. Every option not named here is OpenAI's own."""
        _refuse_websockets(options.pop("websocket_base_url", None))
        if http_client is None and insecure_plaintext:
            if obfuscate is None:
                hint = "In the clear, `openai.OpenAI` does the same."
                raise SetupError("insecure_plaintext is for obfuscated prompts alone.", hint=hint)
            if policy is not None or allow_software_tee or relay is not None or issuer is not None:
                hint = "Leave out policy, relay and issuer, or insecure_plaintext."
                raise SetupError("insecure_plaintext verifies nothing.", hint=hint)
            http_client = self._http_kind(str(base_url), timeout, obfuscate)
        elif http_client is None and issuer is not None:
            key = options.get("api_key") or os.environ.get("OPENAI_API_KEY")
            source = TokenSource(cloud_of(cloud), issuer, key if isinstance(key, str) else None)
            trusted = load_policy(policy, allow_software_tee=allow_software_tee)
            http_client = self._http_kind(CloudAccess(str(base_url), source, trusted, relay), timeout, obfuscate)
            source.begin()
        elif http_client is None:
            node = verified_node(str(base_url), load_policy(policy, allow_software_tee=allow_software_tee), relay)
            http_client = self._http_kind(node, timeout, obfuscate)
        if not isinstance(http_client, self._http_kind):
            raise SetupError("A sealed client brings its own HTTP client.", hint="Leave `http_client` out.")
        self._node = http_client.node
        url = str(base_url) if issuer is None else HttpAddress.parse(str(base_url)).url("/v1")
        if self._node is None:
            same = httpx2.URL(url).host == http_client.base_url.host
        else:
            same, url = HttpAddress.parse(url) == self._node.address, self._node.address.url("/v1")
        if not same:
            what = "server" if self._node is None else "node"
            raise SetupError(f"A copy of a client speaks to the same {what}.", hint="Make a new client for another.")
        super().__init__(base_url=url, http_client=http_client, timeout=timeout, **options)  # type: ignore[call-arg]

    def copy(self, **options: Any) -> Self:
        copied: Self = super().copy(**{**options, "websocket_base_url": _NO_WEBSOCKETS})  # type: ignore[misc]
        return copied

    with_options = copy

    @property
    def verification(self) -> Verification:
        if self._node is None:
            hint = "Ask one Cloister node; in a cloud each is verified before it gets a request."
            raise SetupError("Nothing was verified: this client has chosen no node.", hint=hint)
        return self._node.verification

    @property
    def websocket_base_url(self) -> NoReturn:
        raise _websockets()

    @websocket_base_url.setter
    def websocket_base_url(self, url: object) -> None:
        _refuse_websockets(url)


class Client(_Verified, openai.OpenAI):  # type: ignore[misc]  # the SDK's URL is an attribute
    _http_kind = HttpClient


class AsyncClient(_Verified, openai.AsyncOpenAI):  # type: ignore[misc]
    """`openai.AsyncOpenAI` for a verified node. The constructor verifies, and so waits for the network."""

    _http_kind = AsyncHttpClient


# The SDK's `copy` asks the client for its WebSocket URL unless it is given one, and a sealed client has none to give.
_NO_WEBSOCKETS = "wss://not-sealed.invalid"


def _error_of_both_families(error: CloisterError, request: httpx2.Request) -> Exception:
    kind = ChannelBrokenError if isinstance(error, ChannelBroken) else NodeNotVerifiedError
    return kind(error, request)


def _transport(server: Server, obfuscate: Obfuscation | None) -> httpx2.AsyncBaseTransport:
    if not isinstance(server, str):
        kind = AsyncSealedTransport if isinstance(server, VerifiedNode) else CloudTransport
        sealed: httpx2.AsyncBaseTransport = kind(server, raising=_error_of_both_families)  # type: ignore[arg-type]
        return sealed if obfuscate is None else AsyncObfuscatingTransport(sealed, obfuscate)
    assert obfuscate is not None, "only obfuscated prompts go in the clear"
    return AsyncObfuscatingTransport(plain_wire(server), obfuscate)


def _refuse_websockets(url: object) -> None:
    if url not in (None, _NO_WEBSOCKETS):
        raise _websockets()


def _websockets() -> SetupError:
    return SetupError("WebSockets are not sealed.", hint="Use the HTTP endpoints, or `openai.OpenAI` in the clear.")


def _only_to(server: Server) -> dict[str, Any]:
    base_url = server if isinstance(server, str) else server.address.url("/v1/")
    return {"base_url": base_url, "trust_env": False, "follow_redirects": False}
