"""Anonymous tokens at the client: fetched ahead of time, kept in a wallet, spent one for each request.

The client asks the issuer with its API key; nodes never see that key. Tokens come in batches of one size: when a client
begins, and once half a batch is used, at a random moment of the next minutes. An issuer and a node that compare clocks
find no fetch beside a request; only a wallet that runs empty makes one.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer
from time import time

import httpx2

from cloister.access.batches import BATCH, DIRECTORY, TOKENS, read_responses, write_requests
from cloister.access.cloud import Cloud, CloudNode
from cloister.access.token_keys import MOST_BYTES, TokenKeys
from cloister.access.tokens import PendingToken, Token
from cloister.access.wallet import NoTokens, Wallet
from cloister.addresses import HttpAddress
from cloister.errors import CloisterError, QueueFull, ServiceUnavailable, SetupError, TokenInvalid
from cloister.files import read_bounded

BATCH_TOKENS = 64
REFILL_AT = BATCH_TOKENS // 2
REFILL_WITHIN_S = 600
MOST_DRAWS = 8  # with two nodes all of them name the same one once in 256 times
_TIMEOUT_S = 30.0
Later = Callable[[float, Callable[[], None]], None]


def default_wallet() -> Path:
    from cloister.config import data_folder

    return data_folder() / "tokens.json"


def read_directory(place: str) -> TokenKeys:
    """An issuer's list of keys, from a file or over HTTP."""
    if "://" not in place:
        return TokenKeys.decode(read_bounded(Path(place), MOST_BYTES))
    with _http(place) as http:
        answer = _sent(http, http.build_request("GET", DIRECTORY))
        return TokenKeys.decode(answer.content)


def _in_a_thread(seconds: float, work: Callable[[], None]) -> None:
    timer = Timer(seconds, work)
    timer.daemon = True
    timer.start()


class TokenSource:
    """Takes tokens from the wallet, and fills it ahead of time. `later` runs work after some seconds."""

    def __init__(
        self,
        cloud: Cloud,
        issuer: str,
        api_key: str | None,
        wallet: Path | None = None,
        later: Later = _in_a_thread,
    ) -> None:
        self.cloud, self._issuer, self._api_key = cloud, issuer, api_key
        self._wallet, self._later = Wallet(wallet or default_wallet()), later
        self._refilling = False

    def begin(self) -> int:
        """Fetch before the first request, where few are left; some suffice if that fails."""
        left = self.left()
        try:
            return left if left > REFILL_AT else self.fetch()
        except CloisterError:
            if not left:
                raise
            return left

    def take(self) -> tuple[Token, CloudNode]:
        """A token that leaves the wallet now, and the node that it names."""
        try:
            token, left = self._wallet.take(self._usable())
        except NoTokens:
            self.fetch()
            token, left = self._wallet.take(self._usable())
        if not self._refilling and left <= REFILL_AT:
            self._refilling = True
            self._later(secrets.randbelow(1000 * REFILL_WITHIN_S) / 1000, self._refill)
        return token, self.cloud.node_of(token)

    def take_elsewhere(self, than: CloudNode) -> tuple[Token, CloudNode] | None:
        """A token that names another node, or None if chance gave none. Those drawn on the way are lost: put back, they
        would make the node of a later request depend on this one's."""
        for _ in range(MOST_DRAWS if len(self.cloud.nodes) > 1 else 0):
            token, place = self.take()
            if place != than:
                return token, place
        return None

    def _refill(self) -> None:
        with suppress(CloisterError):  # `take` says it, when the last token is used
            if self.left() <= REFILL_AT:
                self.fetch()
        self._refilling = False

    def fetch(self, count: int = BATCH_TOKENS) -> int:
        """How many tokens the wallet holds afterwards."""
        if not self._api_key:
            raise SetupError("The issuer wants an API key.", hint="Give the key that its operator made for you.")
        keys = self.cloud.token_keys
        key = keys.current(time()).key
        pending = [PendingToken.draw(key, keys.challenge) for _ in range(count)]
        with _http(self._issuer) as http:
            headers = {"Content-Type": BATCH[0], "Authorization": f"Bearer {self._api_key}"}
            body = write_requests([each.request for each in pending])
            answer = _sent(http, http.build_request("POST", TOKENS, headers=headers, content=body))
        responses = read_responses(answer.content)
        if len(responses) != count:
            raise TokenInvalid("The issuer gave another number of tokens than were asked for.")
        return self._wallet.add(one.finish(response) for one, response in zip(pending, responses, strict=True))

    def left(self) -> int:
        return self._wallet.count(self._usable())

    def _usable(self) -> list[bytes]:
        now = time()
        return [key.id for key in self.cloud.token_keys.all if key.counts(now)]


def _http(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=HttpAddress.parse(url).url("/"), timeout=_TIMEOUT_S, trust_env=False)


def _sent(http: httpx2.Client, request: httpx2.Request) -> httpx2.Response:
    try:
        answer = http.send(request)
    except httpx2.RequestError as wrong:
        raise ServiceUnavailable(f"No proper answer came from the issuer ({type(wrong).__name__}).") from None
    if answer.status_code == 429:
        wait = answer.headers.get("Retry-After", "")
        seconds = int(wait) if wait.isascii() and wait.isdigit() and len(wait) < 7 else 60
        raise QueueFull("The issuer gives no more tokens for now.", retry_after=seconds)
    if answer.status_code != 200:
        hint = "Is this the key that it knows you by?"
        raise TokenInvalid(f"The issuer refused ({answer.status_code}).", hint=hint)
    return answer
