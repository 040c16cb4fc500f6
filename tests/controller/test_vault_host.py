"""The way to a vault host: nothing is asked of it before its evidence was checked, and only its holder is spoken to."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cloister.attest.attester import SoftwareAttester
from cloister.attest.evidence import HOST_DOMAIN, VERSION, NodeEvidence, bind
from cloister.attest.policy import Policy
from cloister.controller import vault_host
from cloister.controller.vault_host import VaultHostClient
from cloister.errors import CloisterError, VaultLost
from cloister.link.memory import LinkShape
from cloister.link.network.credentials import credentials_from
from cloister.link.network.handshake import request_for
from cloister.messages.frames import FrameReader
from cloister.messages.lifecycle import StartFailed, why_not_started
from cloister.messages.network_link import Connect, Credentials
from tests.attest.statements import statement

MEASUREMENT, FIRST, SECOND = b"m" * 32, b"1" * 32, b"2" * 32
ORDER = Connect("127.0.0.1:1", credentials_from(bytes(32), "server"), request_for(bytes(32), LinkShape(1, 4, 1)))
DEVELOPMENT = Policy(allow_software_tee=True)


class Host(VaultHostClient):
    """Whose other end answers as it is told: with a document, or an error."""

    def __init__(self, policy: Policy = DEVELOPMENT, order: Connect = ORDER) -> None:
        self.changed = 0
        super().__init__(order, policy, MEASUREMENT, self._count)
        self.certificate = FIRST
        self.said = statement()
        self.runs = MEASUREMENT
        self.error: CloisterError | None = None
        self.asked: list[tuple[bytes, bytes]] = []

    def _count(self) -> None:
        assert not self.pinned, "nobody is spoken to before clients are told to verify anew"
        self.changed += 1

    async def _ask(self, nonce: bytes, credentials: Credentials) -> NodeEvidence:
        self.asked.append((nonce, credentials.pinned))
        if self.error is not None:
            raise self.error
        bound = bind(nonce, self.certificate, self.runs, b"", self.said, HOST_DOMAIN)
        report = SoftwareAttester().attest(bound).report
        return NodeEvidence(VERSION, "none", report, self.certificate, self.runs, self.said)

    async def settled(self) -> None:
        assert self._checking is not None
        await self._checking

    def refusal(self) -> str:
        """What a vault is told that cannot be had."""
        _, ours = self.spawn("vault", 0, 1)
        with ours:
            (told,) = FrameReader[StartFailed](StartFailed).feed(ours.recv(1 << 16))
        return str(why_not_started(told))


async def test_a_host_whose_evidence_holds_is_pinned_and_no_other_is_spoken_to() -> None:
    host = Host()
    await host.check()
    assert host.pinned == FIRST and not host.changed
    shown = await host.evidence(b"n" * 32)
    assert shown["127.0.0.1:1"].channel_key == FIRST and host.asked[-1] == (b"n" * 32, FIRST)


@pytest.mark.parametrize(
    ("changes", "policy", "why"),
    [
        ({}, Policy(), "software tee"),
        ({"runs": b"x" * 32}, DEVELOPMENT, "another release"),
        ({"said": statement(missing_layers=("landlock",))}, DEVELOPMENT, "without landlock"),
        ({"error": VaultLost("Nobody is there.")}, DEVELOPMENT, "Nobody is there"),
    ],
)
async def test_a_host_that_does_not_prove_what_it_must_gets_no_vault(
    changes: dict[str, Any], policy: Policy, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_host, "start_module", lambda *_: pytest.fail("it was spoken to"))
    host = Host(policy)
    for name, value in changes.items():
        setattr(host, name, value)
    await host.check()
    assert not host.pinned and why in host.refusal() and await host.evidence(bytes(32)) == {}
    await host.settled()
    await host.close()


async def test_a_degraded_server_takes_a_degraded_host() -> None:
    host = Host(order=replace(ORDER, allow_degraded=True))
    host.said = statement(missing_layers=("landlock",))
    await host.check()
    assert host.pinned == FIRST


async def test_a_host_that_starts_again_is_checked_again_and_clients_verify_anew() -> None:
    host = Host()
    await host.check()
    host.doubt()
    assert not host.pinned and "again" in host.refusal()
    await host.settled()
    assert host.pinned == FIRST and not host.changed, "it was the same"
    host.certificate = SECOND
    host.doubt()
    await host.settled()
    assert host.pinned == SECOND and host.changed == 1
