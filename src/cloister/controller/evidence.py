"""What this node can show of itself: a fresh report over a client's nonce, bound to the channel key and the release.

It holds no secret of a user's and knows nothing of requests. Asking the machine's firmware takes its time, so one
thread does that, and only so many may wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from cloister.attest.attester import Attester, Tee
from cloister.attest.evidence import VERSION, NodeEvidence, Statement, bind, write_evidence
from cloister.controller.relay import Frontend
from cloister.errors import CloisterError, QueueFull, where_raised
from cloister.messages.frontend import AskEvidence, Evidence
from cloister.messages.lifecycle import failed
from cloister.transparency.dev_log import Release

MAX_WAITING = 256


class Keyed(Protocol):
    """Whoever has the key that clients are to seal to."""

    @property
    def public(self) -> bytes: ...


class EvidenceMaker:
    """`statement` says what the node serves, once that is known."""

    def __init__(
        self,
        attester: Attester,
        release: Release,
        keys: Keyed,
        statement: Callable[[], Awaitable[Statement]],
        most: int = MAX_WAITING,
    ) -> None:
        self._attester = attester
        self._release = release
        self._measurement = release.measurement
        self._keys = keys
        self._statement = statement
        self._most = most
        self._answering: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evidence_maker")

    @property
    def tee(self) -> Tee:
        """What stands behind the evidence."""
        return self._attester.tee

    def answer(self, frontend: Frontend, asked: AskEvidence) -> None:
        """Send the evidence asked for, or why there is none."""
        if len(self._answering) >= self._most:
            frontend.send(failed(asked.request_id, QueueFull("Too many clients ask for evidence.", retry_after=1)))
            return
        task = asyncio.create_task(self._answer(frontend, asked))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def evidence(self, nonce: bytes, since: int = 0) -> NodeEvidence:
        """The whole document, for this nonce and for a client that saw a log of `since` entries last."""
        statement = msgspec.json.encode(await self._statement())
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._make, nonce, since, statement)

    def close(self) -> None:
        for task in self._answering:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, nonce: bytes, since: int, statement: bytes) -> NodeEvidence:
        channel_key = self._keys.public
        attested = self._attester.attest(bind(nonce, channel_key, self._measurement, b"", statement))
        return NodeEvidence(
            version=VERSION,
            tee=attested.tee,
            report=attested.report,
            channel_key=channel_key,
            measurement=self._measurement,
            statement=statement,
            certificates=attested.certificates,
            collateral=attested.collateral,
            release=self._release.prove(since),
        )

    async def _answer(self, frontend: Frontend, asked: AskEvidence) -> None:
        try:
            document = write_evidence(await self.evidence(asked.nonce, asked.since))
            frontend.send(Evidence(asked.request_id, document))
        except CloisterError as reason:
            frontend.send(failed(asked.request_id, reason))
        except Exception as wrong:
            frontend.send(failed(asked.request_id, CloisterError(f"There is no evidence: {where_raised(wrong)}.")))
