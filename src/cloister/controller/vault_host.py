"""The way to a vault host. A vault is requested only after the machine's evidence, from the holder of its TLS
certificate. A host that restarts is checked again; `on_change` comes before any prompt."""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from cloister.attest.attester import Tee
from cloister.attest.evidence import NodeEvidence, read_evidence, read_statement
from cloister.config import ControllerSettings
from cloister.errors import (
    CloisterError,
    EvidenceInvalid,
    ServiceUnavailable,
    SetupError,
    VaultLost,
    VerificationFailed,
)
from cloister.link.memory import LinkShape
from cloister.link.network.address import Address
from cloister.link.network.credentials import credentials_from, read_secret
from cloister.link.network.handshake import digest_of, request_for
from cloister.messages.frames import encode_frame
from cloister.messages.lifecycle import StartFailed, start_failed
from cloister.messages.network_link import AskVaultHost, Connect, Credentials, VaultHostShown
from cloister.process.child import Child, start_module
from cloister.process.handle import ModuleHandle
from cloister.process.supervisor import cancelled

if TYPE_CHECKING:
    from cloister.attest.policy import Policy

log = logging.getLogger(__name__)
SERVER_BRIDGE = "cloister.link.network.server_bridge"
ASK_S = 20.0  # for a connection and a report of the firmware there
MOST_ASKED_AT_ONCE = 4


class VaultHostClient:
    def __init__(
        self, order: Connect, policy: "Policy", measurement: bytes, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._order, self._policy, self._measurement, self._on_change = order, policy, measurement, on_change
        self._last_pinned = b""
        self._trouble: CloisterError = ServiceUnavailable("The vault host has not shown its evidence yet.")
        self._checking: asyncio.Task[None] | None = None
        self._few = asyncio.Semaphore(MOST_ASKED_AT_ONCE)

    @property
    def pinned(self) -> bytes:
        """SHA-256 of the certificate whose holder's evidence was checked; empty if there is none now."""
        return self._order.credentials.pinned

    def spawn(
        self, role: Literal["service", "vault"], *descriptors: int, weights: int | None = None
    ) -> tuple[Child, socket.socket]:
        """It reports that it is ready, or why not, or hangs up. `weights` is unused: a vault host has its own."""
        if role != "vault":
            raise ServiceUnavailable("A vault host has vaults only.")
        if not self.pinned:
            return self._refused()
        child, ours = start_module(SERVER_BRIDGE)
        socket.send_fds(ours, [encode_frame((self._order,))], list(descriptors))
        return child, ours

    def doubt(self) -> None:
        """The peer that answers is not the one that was checked: check again."""
        self._pin(b"")
        self._check_again()

    async def check(self) -> None:
        nonce = secrets.token_bytes(32)
        try:
            evidence = await self._ask(nonce, self._order.credentials)
            await asyncio.to_thread(self._examine, evidence, nonce)
        except CloisterError as reason:
            self._trouble = reason
            return
        self._trouble = ServiceUnavailable("The vault host is being checked again.")
        if self._last_pinned not in (b"", evidence.channel_key):
            log.warning("The vault host restarted, or is another one: clients have to verify this node again.")
            self._on_change()
        self._last_pinned = evidence.channel_key
        self._pin(evidence.channel_key)

    async def evidence(self, nonce: bytes) -> dict[str, NodeEvidence]:
        if not self.pinned:
            return {}
        try:
            async with self._few:
                return {self._order.address: await self._ask(nonce, self._order.credentials)}
        except CloisterError as reason:
            log.warning("The vault host shows no evidence: %s", reason)
            return {}

    async def close(self) -> None:
        await cancelled(self._checking)

    async def _ask(self, nonce: bytes, credentials: Credentials) -> NodeEvidence:
        """Checked here: it came through a connection with the certificate that is in it."""
        bridge = ModuleHandle("bridge", SERVER_BRIDGE, StartFailed | VaultHostShown, VaultHostShown)
        try:
            bridge.send(AskVaultHost(self._order.address, credentials, nonce))
            async with asyncio.timeout(ASK_S):
                shown = await bridge.ready
        except TimeoutError:
            raise VaultLost("The vault host did not show its evidence in time.") from None
        finally:
            await bridge.close()
        evidence = read_evidence(shown.document)
        if evidence.channel_key != shown.certificate:
            raise EvidenceInvalid("The vault host's evidence is for another connection than it came through.")
        return evidence

    def _examine(self, evidence: NodeEvidence, nonce: bytes) -> None:
        from cloister.attest.node import verify_vault_host  # imports all verifiers, which few servers need

        policy = self._policy
        if self._order.allow_degraded:
            missing = read_statement(evidence.statement).missing_layers
            policy = replace(policy, accept_missing_layers=missing or ("any",))
        at = datetime.now(UTC)
        verdict = verify_vault_host(evidence, nonce, at=at, policy=policy, measurement=self._measurement)
        if not verdict.passed:
            why = "; ".join(f"{check.name} ({check.reason})" for check in verdict.broken)
            raise VerificationFailed(
                f"The vault host does not prove what it must: {why}.",
                checks=tuple(check.name for check in verdict.broken),
                hint="It must run the server's release; --vault-host-policy says what its machine must be.",
            )

    def _pin(self, certificate: bytes) -> None:
        self._order = replace(self._order, credentials=replace(self._order.credentials, pinned=certificate))

    def _check_again(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self.check())

    def _refused(self) -> tuple[Child, socket.socket]:
        """What a bridge does that finds no peer with the pinned certificate."""
        self._check_again()
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(encode_frame((start_failed(self._trouble, "The vault host cannot be used"),)))
        return Child(), ours


def check_remote_vaults(settings: ControllerSettings) -> tuple[Address, Credentials] | None:
    if settings.vault_host is None and settings.vault_host_key is None:
        return None
    if settings.vault_host is None or settings.vault_host_key is None:
        raise SetupError(
            "A vault host needs its address and its key.",
            hint="Give both --vault-host and --vault-host-key, or neither.",
        )
    from cloister.attest.policy import load_policy

    load_policy(settings.vault_host_policy)
    return Address.parse(settings.vault_host), credentials_from(read_secret(settings.vault_host_key), "server")


async def reach_vault_host(
    settings: ControllerSettings,
    weights: int,
    shape: LinkShape,
    tee: Tee,
    measurement: bytes,
    on_change: Callable[[], None],
) -> VaultHostClient | None:
    """It must run the node's own release; a node without hardware attestation accepts a host without it."""
    if (found := check_remote_vaults(settings)) is None:
        return None
    from cloister.attest.policy import load_policy

    _, credentials = found
    assert settings.vault_host is not None
    request = request_for(await asyncio.to_thread(digest_of, weights), shape)
    order = Connect(settings.vault_host, credentials, request, settings.allow_degraded_sandbox)
    policy = load_policy(settings.vault_host_policy, allow_software_tee=tee == "none")
    remote = VaultHostClient(order, policy, measurement, on_change)
    await remote.check()
    return remote
