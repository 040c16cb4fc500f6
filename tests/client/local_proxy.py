"""A proxy in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloister.attest.policy import Policy
from cloister.client.proxy import Proxy
from cloister.client.verification import VerifiedNode


@contextmanager
def proxy_to(url: str, policy: Policy | None = None) -> Iterator[str]:
    """Its URL; raises what verification raises."""
    node = VerifiedNode(url, policy or Policy(allow_software_tee=True))
    with serving(lambda: Proxy(node)) as local:
        yield local


@contextmanager
def serving(make: Callable[[], Proxy]) -> Iterator[str]:
    """The URL of a local endpoint, made in the loop that serves it."""
    ready = threading.Event()
    where: list[str] = []
    loop = asyncio.new_event_loop()
    made: list[Proxy] = []

    def tell(local: str) -> None:
        where.append(local)
        ready.set()

    async def serve() -> None:
        made.append(make())
        await made[0].serve(0, tell)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield where[0]
    finally:
        loop.call_soon_threadsafe(made[0].stop)
        thread.join()
        loop.close()
