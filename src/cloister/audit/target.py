"""The node that is audited, as its users reach it, and its processes where they run on this machine."""

import os
import secrets
import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from threading import Event, Semaphore
from time import monotonic
from typing import Any, TypeVar

import httpx2

from cloister.addresses import HttpAddress, is_loopback
from cloister.attest.policy import Policy
from cloister.audit.finding import Finding, not_tried
from cloister.client.verification import Verification, examine, tls_to
from cloister.errors import ServiceUnavailable
from cloister.levels import LEVELS, Reader

WORD_LETTERS = 8
REQUEST_S = 300.0
CONTROLLER = "cl-controller"
COMPLETIONS = "/v1/completions"
_Result = TypeVar("_Result")


def random_words(count: int) -> str:
    """A text that no cache has seen."""
    letters = string.ascii_lowercase
    return " ".join("".join(secrets.choice(letters) for _ in range(WORD_LETTERS)) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Reply:
    """`first_s`: from the question to the first byte of a stream."""

    status: int
    body: bytes
    document: Any
    first_s: float = 0.0


@dataclass(eq=False)
class Target:
    """`key` and `other_key`: of two tenants. `pid`: the controller's, if that runs here and this process is root."""

    address: HttpAddress
    key: str
    policy: Policy
    other_key: str = ""
    pid: int | None = None
    _client: httpx2.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        timeout = httpx2.Timeout(REQUEST_S, connect=5.0)
        self._client = httpx2.Client(verify=tls_to(self.address), timeout=timeout)

    def close(self) -> None:
        self._client.close()

    def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """ServiceUnavailable if no answer comes. An empty `key` sends none."""
        bearer = self.key if key is None else key
        sent = {**({"Authorization": f"Bearer {bearer}"} if bearer else {}), **(headers or {})}
        begun = monotonic()
        pieces: list[bytes] = []
        first_s = 0.0
        try:
            with self._client.stream(method, self.address.url(path), json=body, headers=sent) as response:
                for piece in response.iter_bytes():
                    first_s = first_s or monotonic() - begun
                    pieces.append(piece)
        except httpx2.RequestError:
            raise ServiceUnavailable(f"{self.address} does not answer.", hint="Is the node up?") from None
        whole = b"".join(pieces)
        document = None
        with suppress(ValueError):
            document = httpx2.Response(200, content=whole).json()
        return Reply(response.status_code, whole, document, first_s)

    @cached_property
    def model(self) -> dict[str, Any]:
        reply = self.ask("GET", "/v1/models")
        if reply.status != 200 or not isinstance(reply.document, dict):
            hint = "Is that a Cloister node, and is the key one of that node's?"
            raise ServiceUnavailable(f"{self.address} shows no models (HTTP {reply.status}).", hint=hint)
        shown: dict[str, Any] = reply.document["data"][0]
        return shown

    @cached_property
    def levels(self) -> tuple[str, ...]:
        return tuple(one["id"] for one in self.model["protection"] if one["enabled"])

    @property
    def quick_levels(self) -> tuple[str, ...]:
        return tuple(name for name in self.levels if not LEVELS[name].slow)

    @property
    def plain_levels(self) -> tuple[str, ...]:
        """Those with one answer, whose log-probabilities a user gets."""
        return tuple(name for name in self.quick_levels if not LEVELS[name].obfuscates)

    @property
    def read_levels(self) -> tuple[str, ...]:
        return tuple(name for name in self.plain_levels if LEVELS[name].reader is Reader.API)

    def complete(self, prompt: str, level: str, *, tokens: int = 8, key: str | None = None, **fields: Any) -> Reply:
        asked = {"model": self.model["id"], "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        return self.ask("POST", COMPLETIONS, {**asked, "protection": level, **fields}, key=key)

    @cached_property
    def verification(self) -> Verification:
        return examine(self.address, self.policy)

    @property
    def is_here(self) -> bool:
        return is_loopback(self.address.host)

    def processes(self) -> dict[int, str]:
        """The node's processes by number, with their names, the controller first."""
        return {} if self.pid is None else dict(family_of(self.pid))

    @contextmanager
    def beside(self, *tasks: Callable[[], _Result]) -> Iterator[None]:
        """While these run, again and again: each was done once when this begins."""
        over, once = Event(), Semaphore(0)

        def repeat(task: Callable[[], _Result]) -> None:
            try:
                task()
            finally:
                once.release()
            while not over.is_set():
                task()

        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            running = [pool.submit(repeat, task) for task in tasks]
            try:
                for _ in running:
                    once.acquire()
                yield
            finally:
                over.set()
                for each in running:
                    each.exception()


def together(*tasks: Callable[[], _Result]) -> list[_Result]:
    with ThreadPoolExecutor(max(1, len(tasks))) as pool:
        return list(pool.map(lambda task: task(), tasks))


def takes_root(attempt: Callable[[Target], Finding]) -> Callable[[Target], Finding]:
    """Not tried without the right to look into the node's processes."""

    @wraps(attempt)
    def tried(target: Target) -> Finding:
        if target.pid is None or os.geteuid() != 0:
            return not_tried("This takes root on the node's machine (`--pid` where several nodes run there).")
        return attempt(target)

    return tried


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def find_controllers() -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdigit() and name_of(int(each.name)) == CONTROLLER:
                found.append(int(each.name))
    return found


def family_of(pid: int) -> Iterator[tuple[int, str]]:
    """A process and all that it started, down to the last. One that ends meanwhile is left out."""
    with suppress(OSError):
        yield pid, name_of(pid)
        children = {each for task in Path(f"/proc/{pid}/task").iterdir() for each in _children(task)}
        for child in sorted(children):
            yield from family_of(child)


def _children(task: Path) -> list[int]:
    try:
        return [int(word) for word in (task / "children").read_text().split()]
    except OSError:
        return []
