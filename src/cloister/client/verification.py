"""Verifying a node (Petridish §4.1). Only a development node's log key may be taken on first use; it is pinned then."""

import asyncio
import hashlib
import os
import secrets
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2
import msgspec
from msgspec.structs import replace

from cloister.addresses import HttpAddress
from cloister.attest.evidence import MAX_EVIDENCE_BYTES, NONCE_BYTES, NodeEvidence, read_evidence, read_statement
from cloister.attest.node import verify_node
from cloister.attest.policy import Policy
from cloister.channel.ohttp.keys import document_of
from cloister.channel.sealing import key_id
from cloister.checks import Examination, Outcome, Verdict
from cloister.errors import CloisterError, EvidenceInvalid, ServiceUnavailable, VerificationFailed
from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust, read_checkpoint
from cloister.transparency.manifest import CloudListed, Entry, NodeNamed, read_entry
from cloister.transparency.note import Algorithm, VerifierKey
from cloister.transparency.proof import ORIGIN_PREFIX, log_origin, verify_release
from cloister.transparency.seen import SeenLogs, SeenMoved


def tls_to(address: HttpAddress) -> ssl.SSLContext:
    """The context for https. For http one without trusted roots: cheap, and useless if it is used by mistake."""
    if address.scheme == "https":
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


ENDPOINT = "/v1/evidence"
CONNECT_S = 5.0
WHOLE_S = 30.0
Headers = tuple[tuple[str, str], ...]
_BUSY = (408, 429, 502, 503, 504)
_HINT = "Check the address; `cloister serve` starts a node."


def ask_for_evidence(
    address: HttpAddress, nonce: bytes, since: int, wire: httpx2.BaseTransport | None = None
) -> NodeEvidence:
    """`since`: the log is proven from this number of entries on. `wire`: another way than the direct one."""
    too_large = EvidenceInvalid(f"Evidence may have at most {MAX_EVIDENCE_BYTES} bytes.")
    headers = (("Content-Type", "application/json"), ("Accept", "application/json"))
    question = msgspec.json.encode({"nonce": nonce.hex(), "since": since})
    try:
        limit = MAX_EVIDENCE_BYTES
        response, body = exchange("POST", address, ENDPOINT, headers, question, WHOLE_S, limit, too_large, wire)
    except httpx2.TimeoutException:
        raise ServiceUnavailable(f"{address} did not show its evidence in time.", hint=_HINT) from None
    except httpx2.RequestError as wrong:
        what = "Nothing answers" if isinstance(wrong, httpx2.ConnectError) else "No proper answer came"
        raise ServiceUnavailable(f"{what} at {address}.", hint=_HINT) from None
    if response.status_code in _BUSY:
        raise ServiceUnavailable(f"{address} cannot answer now (HTTP {response.status_code}).", hint="Try again soon.")
    if response.status_code != 200:
        hint = "Is that a Cloister node?"
        raise EvidenceInvalid(f"{address} shows no evidence (HTTP {response.status_code}).", hint=hint)
    return read_evidence(body)


def exchange(
    method: str,
    address: HttpAddress,
    endpoint: str,
    headers: Headers,
    data: bytes,
    in_s: float,
    limit: int,
    surplus: CloisterError,
    wire: httpx2.BaseTransport | None = None,
) -> tuple[httpx2.Response, bytes]:
    """The whole answer; `surplus` is raised if it is longer than `limit`. Closes the wire."""
    timeout = httpx2.Timeout(in_s, connect=CONNECT_S).as_dict()
    url, more = address.url(endpoint), {"timeout": timeout}
    request = httpx2.Request(method, url, headers=headers, content=data, extensions=more)
    until = monotonic() + in_s
    body = bytearray()
    with wire or httpx2.HTTPTransport(verify=tls_to(address)) as wire:
        response = wire.handle_request(request)
        assert isinstance(response.stream, httpx2.SyncByteStream)
        for piece in response.stream:
            body += piece
            if len(body) > limit:
                raise surplus
            if monotonic() > until:
                raise httpx2.ReadTimeout("the answer comes too slowly")
        response.close()
    return response, bytes(body)


Ask = Callable[[HttpAddress, bytes, int], NodeEvidence]
Clock = Callable[[], float]
_TRIES = 3
INSTANCE = "node process"
KEY_MARGIN_S = 30.0  # verified again this long before the node drops the key: requests under way still need it


@dataclass(frozen=True)
class Verification:
    """One verification of one node. `channel_key` is to be used only if it `passed`."""

    url: str
    time: datetime
    nonce: bytes
    verdict: Verdict
    channel_key: bytes = b""
    stated_ms: int = 0  # by the node's clock, of its evidence; reckoned on from when it `arrived`
    arrived: float = 0.0
    took_s: float = 0.0  # the node's clock may be up to this much later than `node_ms`
    key_held_s: float | None = None  # How long from then on the node holds the channel key, by its own word.

    def node_ms(self) -> int:
        """The time by the node's clock, or a little before: as much as the evidence took to arrive."""
        return self.stated_ms + int(1000 * (monotonic() - self.arrived))

    @property
    def passed(self) -> bool:
        return self.verdict.passed

    def holds(self, check: str) -> bool:
        return any(each.name == check and each.outcome is Outcome.PASS for each in self.verdict.checks)

    @property
    def key_id(self) -> str:
        return key_id(self.channel_key).hex() if self.channel_key else ""

    def as_json(self) -> dict[str, Any]:
        shown = {"url": self.url, "time": self.time.isoformat(timespec="seconds"), "nonce": self.nonce.hex()}
        return {**shown, "channel_key_id": self.key_id, **self.verdict.as_json()}


def next_step(verdict: Verdict) -> str:
    broken = {check.name for check in verdict.broken}
    if "software tee" in broken:
        return "To accept a development node that proves nothing, say --allow-software-tee (allow_software_tee=True)."
    if broken & {"release", "launch"}:
        return "A policy says which releases and machines are accepted: --policy FILE (docs/client.md)."
    if "vault hosts" in broken:
        return "A policy says what vault hosts must prove, or trusts them unseen: docs/client.md."
    if "gpu evidence" in broken:
        shows = "Its operator shows the GPUs with --gpu-evidence nvml, where they are in confidential mode"
        return f"{shows}; a policy may let them go unseen: [gpu] allow_unseen (docs/attestation.md)."
    if "weights digest" in broken or any(name.startswith("setting") for name in broken):
        return "Its operator chose otherwise than the policy demands: weights, or [settings] (docs/client.md)."
    if "sandbox" in broken:
        return "Its operator can complete the sandbox; a policy can accept less: accept_missing_layers."
    return ""


class NodeNotVerified(VerificationFailed):
    """The node did not prove what the policy asks for; `verification` is the whole document."""

    def __init__(self, verification: Verification) -> None:
        broken = verification.verdict.broken
        what = "; ".join(f"{check.name} ({check.outcome}: {check.reason})" for check in broken[:4])
        more = f" and {len(broken) - 4} more" if len(broken) > 4 else ""
        hint = next_step(verification.verdict) or "Nothing was sent to it. `cloister verify` shows every check."
        names = tuple(each.name for each in broken)
        super().__init__(f"{verification.url} is not verified: {what}{more}.", checks=names, hint=hint)
        self.verification = verification


def verify(
    node: HttpAddress | str, policy: Policy, *, memory: SeenLogs | None = None, ask: Ask = ask_for_evidence
) -> Verification:
    """The verification, if it passed; else NodeNotVerified, or ServiceUnavailable if the node does not answer."""
    verification = examine(node, policy, memory=memory, ask=ask)
    if not verification.passed:
        raise NodeNotVerified(verification)
    return verification


def examine(
    node: HttpAddress | str, policy: Policy, *, memory: SeenLogs | None = None, ask: Ask = ask_for_evidence
) -> Verification:
    address = HttpAddress.parse(node) if isinstance(node, str) else node
    visit = _Visit(address, policy, memory or seen_logs(), ask)
    for _ in range(_TRIES):
        try:
            return visit.make()
        except SeenMoved:
            continue
    raise VerificationFailed("The memory of logs keeps changing.", checks=("log consistency",), hint="Try again.")


@dataclass(frozen=True)
class _Visit:
    _address: HttpAddress
    _policy: Policy
    _memory: SeenLogs
    _ask: Ask

    def make(self) -> Verification:
        nonce = secrets.token_bytes(NONCE_BYTES)
        pinned = self._memory.pinned(str(self._address)) if self._policy.allow_software_tee else None
        logs = self._policy.release.logs or ((pinned,) if pinned else ())
        guess = VerifierKey.parse(logs[0]).name if logs else ""
        seen = self._memory.last(guess) if guess else None
        asked = monotonic()
        try:
            evidence = self._ask(self._address, nonce, seen.size if seen else 0)
            origin = log_origin(evidence.release) if evidence.release else ""
            if origin != guess:
                seen = self._memory.last(origin) if self._may_be_trusted(origin) else None
                if seen is not None:
                    # Another log than expected, but one seen before: the proof must begin where that one ended.
                    nonce, asked = secrets.token_bytes(NONCE_BYTES), monotonic()
                    evidence = self._ask(self._address, nonce, seen.size)
            return self._judge(evidence, nonce, pinned, seen, asked)
        except EvidenceInvalid as wrong:
            found = Examination()
            found.failed("evidence", str(wrong))
            return Verification(str(self._address), datetime.now(UTC), nonce, found.verdict())

    def _may_be_trusted(self, origin: str) -> bool:
        """No other node need learn which logs this user has met."""
        if origin.startswith(ORIGIN_PREFIX):
            return self._policy.allow_software_tee
        return any(key.name == origin for key in self._policy.release.log_keys())

    def _judge(
        self, evidence: NodeEvidence, nonce: bytes, pinned: str | None, seen: Checkpoint | None, asked: float
    ) -> Verification:
        at, arrived = datetime.now(UTC), monotonic()
        found = Examination()
        found.include(verify_node(evidence, nonce, at=at, policy=self._policy))
        found.include(check_release(evidence, self._policy, at=at, pinned=pinned, seen=seen))
        said = read_statement(evidence.statement)
        _check_oblivious(found, said.oblivious, evidence.channel_key)
        proof = evidence.release
        later = [read_entry(entry) for entry in proof.later] if proof and proof.checkpoint else []  # else unproven
        _check_cloud(found, said.settings.cloud, later)
        _check_instance(found, str(self._address), said.instance, later)
        if found.verdict().passed:
            self._remember(found, evidence, seen)
        held_s = (said.key_until_ms - said.made_ms) / 1000
        took_s, key = arrived - asked, evidence.channel_key
        return Verification(str(self._address), at, nonce, found.verdict(), key, said.made_ms, arrived, took_s, held_s)

    def _remember(self, found: Examination, evidence: NodeEvidence, seen: Checkpoint | None) -> None:
        """Keep what was verified, or fail: what cannot be remembered cannot be held against the node next time."""
        proof = evidence.release
        first_use = learns_on_first_use(evidence, self._policy)
        if proof is None or not proof.checkpoint or not (first_use or self._policy.release.logs):
            return
        try:
            if first_use:
                self._memory.pin(str(self._address), VerifierKey.parse(proof.log_key))
            self._memory.remember(read_checkpoint(proof.checkpoint), after=seen)
        except SeenMoved:
            raise
        except VerificationFailed as wrong:
            found.failed(wrong.checks[0] if wrong.checks else "log consistency", wrong.message)


def _check_cloud(found: Examination, followed: str, later: Sequence[Entry | None]) -> None:
    """That the list of nodes and token keys that the node follows is the newest in the log: one for all users."""
    name = "cloud list"
    found.claim(cloud=followed)
    listed = [entry.digest.hex() for entry in later if isinstance(entry, CloudListed)]
    if not followed:
        found.skipped(name, "the node takes no anonymous tokens", required=False)
    elif not listed:
        found.skipped(name, "the log lists no cloud since the node's release", required=False)
    else:
        found.check(name, followed == listed[-1], "the log has a newer list than the node's", f"sha256 {followed}")


def _check_instance(found: Examination, url: str, stated: bytes, later: Sequence[Entry | None]) -> None:
    """That the node is the one process that the log names last for its address: it has one channel key, for all users,
    where another process, though its evidence is as good, could be shown to one of them alone."""
    found.claim(instance=stated.hex())
    named = [entry.instance for entry in later if isinstance(entry, NodeNamed) and entry.url == url]
    if not named:
        found.skipped(INSTANCE, "the log names no process for this address since the node's release", required=False)
    else:
        reason = "the log names another process for this address than the one that answers"
        found.check(INSTANCE, stated == named[-1], reason, stated.hex())


def _check_oblivious(found: Examination, stated: bytes, channel_key: bytes) -> None:
    """That a relay's users are to use the channel key and no other, which might be a user's own."""
    name, expected = "oblivious keys", hashlib.sha256(document_of(channel_key)).digest()
    found.claim(oblivious=stated.hex())
    if stated:
        found.check(name, stated == expected, "they are not the channel key's", f"sha256 {expected.hex()}")
    else:
        found.skipped(name, "the node states none: it is not to be reached through a relay", required=False)


def seen_logs() -> SeenLogs:
    """The memory in $CLOISTER_STATE, or in the user's state folder: unlike a cache, not to be thrown away."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return SeenLogs(Path(os.environ.get("CLOISTER_STATE") or base / "cloister") / "logs.json")


def learns_on_first_use(evidence: NodeEvidence, policy: Policy) -> bool:
    """Whether the log's key may be taken from the node: it proves nothing anyway, and the user said so."""
    return policy.allow_software_tee and evidence.tee == "none" and not policy.names_releases


def check_release(
    evidence: NodeEvidence, policy: Policy, *, at: datetime, pinned: str | None = None, seen: Checkpoint | None = None
) -> Verdict:
    found = Examination()
    first_use = learns_on_first_use(evidence, policy)
    if policy.measurements:
        found.listed("release", evidence.measurement.hex(), policy.measurements, "measurements")
    elif not policy.names_releases and not first_use:
        found.skipped("release", "the policy names neither measurements nor a log nor a signer: none can be accepted")
    trusted = _met_here(found, evidence, pinned) if first_use else policy.release
    if not trusted.logs and not trusted.sigstore:
        return found.verdict()
    if (proof := evidence.release) is None:
        found.failed("release proof", "the node does not show that its release is public")
    else:
        shown = proof if trusted.logs else replace(proof, checkpoint="")
        found.include(verify_release(shown, evidence.measurement, at=at, trusted=trusted, seen=seen))
    return found.verdict()


def _met_here(found: Examination, evidence: NodeEvidence, pinned: str | None) -> ReleaseTrust:
    name = "log key"
    given = evidence.release.log_key if evidence.release else ""
    if not given:
        found.failed(name, "the node does not show its log")
    elif not given.startswith(ORIGIN_PREFIX):  # any other name may belong to a real log
        found.failed("release", f"it is in a log that no policy names, {given.partition('+')[0][:256]!r}")
    elif VerifierKey.parse(given).algorithm is not Algorithm.ED25519:
        found.failed(name, "the key is not a log's")
    elif pinned is None:
        found.skipped(name, "met for the first time, and pinned from now on", required=False)
        return ReleaseTrust(logs=(given,))
    else:
        found.check(name, given == pinned, "the log here had another key when it was met first", found="as met first")
        return ReleaseTrust(logs=(pinned,))
    return ReleaseTrust()


Verifier = Callable[[HttpAddress, Policy], Verification]


class VerifiedNode:
    """Holds the last verification that passed. There is no state in which it has none: making one verifies."""

    def __init__(self, url: str, policy: Policy, *, verifier: Verifier = verify, clock: Clock = monotonic) -> None:
        self.address = HttpAddress.parse(url)
        self.policy = policy
        self._verifier = verifier
        self._clock = clock
        self._lock = threading.Lock()
        self._keep(verifier(self.address, policy))

    @property
    def fresh(self) -> Verification | None:
        """The last one if it is young enough to rely on."""
        return self.verification if self._clock() < self._until else None

    def wire(self) -> httpx2.AsyncBaseTransport:
        """A way to the node, for sealed requests."""
        return httpx2.AsyncHTTPTransport(verify=tls_to(self.address), limits=httpx2.Limits())

    def verified(self, *, after: Verification | None = None) -> Verification:
        """Made now if need be; another than `after`. If it raises, nothing may be sent."""
        if (kept := self.fresh) is not None and kept is not after:
            return kept
        with self._lock:
            kept = self.fresh
            if kept is None or kept is after:
                kept = self._verifier(self.address, self.policy)
                self._keep(kept)
            return kept

    def _keep(self, verification: Verification) -> None:
        """For as long as the policy says, and the node holds the key: it is not to be asked for one it has dropped."""
        usable_s, held_s = self.policy.max_age_s, verification.key_held_s
        if held_s is not None:  # one that promises little is not asked at every request
            usable_s = min(usable_s, max(held_s - KEY_MARGIN_S, KEY_MARGIN_S))
        self.verification, self._until = verification, self._clock() + usable_s

    async def verified_beside(self, *, after: Verification | None = None) -> Verification:
        kept = self.fresh
        return kept if kept is not None and kept is not after else await asyncio.to_thread(self.verified, after=after)
