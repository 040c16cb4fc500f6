"""What a client demands before it believes a node, against a node that is made up but for evidence, log and channel."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cloister.addresses import HttpAddress
from cloister.attest.evidence import NodeEvidence, write_evidence
from cloister.attest.policy import Policy
from cloister.client.verification import NodeNotVerified, ask_for_evidence, examine, verify
from cloister.errors import EvidenceInvalid, ServiceUnavailable, SetupError, VerificationFailed
from cloister.transparency.checkpoint import ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.note import Algorithm, SigningKey
from cloister.transparency.proof import publish, revoke
from cloister.transparency.seen import SeenLogs
from tests.client.fake_node import FakeNode, manifest_of, release_in, running
from tests.client.http_server import Received, Reply, http_server, reply

DEVELOPMENT = Policy(allow_software_tee=True)
Evidence = Callable[[NodeEvidence], NodeEvidence]


def broken(url: str, policy: Policy) -> set[str]:
    with pytest.raises(VerificationFailed) as failed:
        verify(url, policy)
    assert isinstance(failed.value, NodeNotVerified) and not failed.value.verification.passed
    return set(failed.value.checks)


def trusting(node: FakeNode, **more: Any) -> Policy:
    """A policy that knows the node's log, and takes the software attester for hardware."""
    assert node.release is not None
    return Policy(allow_software_tee=True, release=ReleaseTrust(logs=(node.release.log_key,)), **more)


def test_the_document_says_what_was_asked_checked_and_claimed(node: FakeNode) -> None:
    verification = verify(node.url, DEVELOPMENT)
    document = json.loads(json.dumps(verification.as_json()))
    assert document["url"] == node.url and document["verdict"] == "pass"
    assert len(bytes.fromhex(document["nonce"])) == 32
    assert document["channel_key_id"] == node.channel_key.key_id.hex()
    assert verification.channel_key == node.channel_key.public
    assert document["claims"]["model"] == "made-up" and document["claims"]["tee"] == "none"
    outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
    assert outcomes["report data"] == outcomes["log inclusion"] == "PASS"


def test_every_verification_has_a_nonce_of_its_own_and_tells_nothing_of_the_user(node: FakeNode) -> None:
    first, second = verify(node.url, DEVELOPMENT), verify(node.url, DEVELOPMENT)
    assert first.nonce != second.nonce
    for received in node.server.received:
        assert set(received.headers) == {"host", "content-type", "content-length", "accept"}
        assert set(json.loads(received.body)) == {"nonce", "since"}


def test_without_the_flag_a_development_node_is_refused_with_what_to_do(node: FakeNode) -> None:
    with pytest.raises(NodeNotVerified) as failed:
        verify(node.url, Policy())
    assert {"tee", "software tee", "release"} == set(failed.value.checks)
    assert "--allow-software-tee" in str(failed.value)


def test_a_log_met_first_is_pinned_and_a_change_of_its_key_is_caught(node: FakeNode, tmp_path: Path) -> None:
    verify(node.url, DEVELOPMENT)
    verify(node.url, DEVELOPMENT)
    node.release = release_in(tmp_path / "other", key=SigningKey.generate("development/test"))
    assert {"log key", "log checkpoint"} <= broken(node.url, DEVELOPMENT)
    node.release = release_in(tmp_path / "another", key=SigningKey.generate("development/else"))
    assert {"log key", "log checkpoint"} <= broken(node.url, DEVELOPMENT)


def test_what_failed_is_not_pinned(node: FakeNode, state: Path) -> None:
    node.missing_layers = ("seccomp",)
    assert broken(node.url, DEVELOPMENT) == {"sandbox"}
    assert SeenLogs(state / "logs.json").pinned(node.url) is None


def test_only_a_development_log_is_believed_on_first_use(node: FakeNode, tmp_path: Path) -> None:
    node.release = release_in(tmp_path / "real", key=SigningKey.generate("log.example/releases"))
    assert broken(node.url, DEVELOPMENT) == {"release"}
    witness = SigningKey.generate("development/test", Algorithm.COSIGNATURE)
    assert node.release is not None
    node.release = replace_key(node.release, str(witness.verifier))
    assert broken(node.url, DEVELOPMENT) == {"log key"}


def replace_key(release: Any, key: str) -> Any:
    """The same release, whose proof names another key."""

    class Renamed:
        measurement = release.measurement

        def prove(self, since: int) -> Any:
            return replace(release.prove(since), log_key=key)

    return Renamed()


def test_a_node_without_a_release_is_refused(node: FakeNode) -> None:
    node.release = None
    assert broken(node.url, DEVELOPMENT) == {"log key"}


@pytest.mark.parametrize("known", [True, False])
def test_a_log_that_grew_is_followed_and_one_that_was_rolled_back_is_caught(tmp_path: Path, known: bool) -> None:
    key = SigningKey.generate("development/test")
    release = release_in(tmp_path / "log", key=key, others=3)
    with running(FakeNode(release)) as node:
        policy = trusting(node) if known else DEVELOPMENT
        verify(node.url, policy)
        log = Log.open(tmp_path / "log")
        for number in range(5):
            publish(log, manifest_of(f"2.{number}"), key)
        verification = verify(node.url, policy)
        assert verification.verdict.claims["log_size"] == 9
        (consistency,) = [check for check in verification.verdict.checks if check.name == "log consistency"]
        assert "continues the 4" in consistency.reason
        node.release = release_in(tmp_path / "shorter", key=key, others=3)
        assert broken(node.url, policy) == {"log consistency"}


@pytest.mark.parametrize("known", [True, False])
def test_a_forked_log_is_caught(tmp_path: Path, known: bool) -> None:
    key = SigningKey.generate("development/test")
    with running(FakeNode(release_in(tmp_path / "log", key=key, others=3))) as node:
        policy = trusting(node) if known else DEVELOPMENT
        verify(node.url, policy)
        fork = Log.create(tmp_path / "fork", key)
        for number in range(6):
            fork.append(b"other history %d" % number, key)
        publish(fork, manifest_of("1.0.0"), key)
        node.release = type(node.release)(manifest_of("1.0.0"), tmp_path / "fork", str(key.verifier))
        assert broken(node.url, policy) == {"log consistency"}


def test_one_log_seen_at_two_nodes_is_one_memory(tmp_path: Path) -> None:
    key = SigningKey.generate("development/test")
    release = release_in(tmp_path / "log", key=key)
    with running(FakeNode(release)) as first, running(FakeNode(release)) as second:
        verify(first.url, DEVELOPMENT)
        publish(Log.open(tmp_path / "log"), manifest_of("2.0"), key)
        verify(second.url, DEVELOPMENT)
        assert second.evidence_asked == 2  # the first answer named the log, the second proves it from where it was seen
        old = release_in(tmp_path / "old", key=key)
        first.release = old
        assert broken(first.url, DEVELOPMENT) == {"log consistency"}


def test_another_log_is_not_told_what_was_seen_of_logs(node: FakeNode, tmp_path: Path) -> None:
    real = SigningKey.generate("log.example/releases")
    node.release = release_in(tmp_path / "real", key=real, others=7)
    verify(node.url, trusting(node))
    stranger = Policy(measurements=(node.release.measurement.hex(),), allow_software_tee=True)
    verify(node.url, stranger)
    assert json.loads(node.server.received[-1].body)["since"] == 0


def test_a_release_is_accepted_by_name_or_by_log_and_both_if_both_are_asked(node: FakeNode, tmp_path: Path) -> None:
    assert node.release is not None
    named = Policy(allow_software_tee=True, measurements=(node.release.measurement.hex().upper(),))
    assert verify(node.url, named).passed
    other = Policy(allow_software_tee=True, measurements=("00" * 32,))
    assert broken(node.url, other) == {"release"}
    assert broken(node.url, trusting(node, measurements=("00" * 32,))) == {"release"}
    unknown = ReleaseTrust(logs=(str(SigningKey.generate("development/test").verifier),))
    assert broken(node.url, Policy(allow_software_tee=True, release=unknown)) == {"log checkpoint"}
    node.release = None
    assert "release proof" in broken(node.url, Policy(allow_software_tee=True, release=unknown))


def test_witnesses_that_are_asked_for_must_have_signed(node: FakeNode) -> None:
    assert node.release is not None
    witness = SigningKey.generate("witness.example", Algorithm.COSIGNATURE)
    trust = ReleaseTrust(logs=(node.release.log_key,), witnesses=(str(witness.verifier),))
    assert broken(node.url, Policy(allow_software_tee=True, release=trust)) == {"log witnesses", "log freshness"}


def test_a_node_that_goes_on_with_a_revoked_or_old_release_is_refused(tmp_path: Path) -> None:
    key = SigningKey.generate("development/test")
    release = release_in(tmp_path / "log", key=key)
    with running(FakeNode(release)) as node:
        policy = trusting(node)
        assert verify(node.url, policy).passed
        newer = ReleaseTrust(logs=(release.log_key,), minimum_version="1.0.1")
        assert broken(node.url, Policy(allow_software_tee=True, release=newer)) == {"release version"}
        before = release.prove(1)
        log = Log.open(tmp_path / "log")
        revoke(log, release.measurement, key)
        stubborn = replace(
            before,
            inclusion=log.inclusion(0),
            checkpoint=str(log.signed),
            consistency=log.consistency(1),
            later=(log.tiles.entry(1),),
        )
        for shown in (stubborn, replace(stubborn, later=())):
            node.release = showing(release, shown)
            assert broken(node.url, policy) == {"log revocation"}


def showing(release: Any, proof: Any) -> Any:
    """The same release, whose node always shows this proof."""

    class Shown:
        measurement = release.measurement

        def prove(self, since: int) -> Any:
            return proof

    return Shown()


def altered(change: Evidence) -> Callable[[HttpAddress, bytes, int], NodeEvidence]:
    def ask(address: HttpAddress, nonce: bytes, since: int) -> NodeEvidence:
        return change(ask_for_evidence(address, nonce, since))

    return ask


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda evidence: replace(evidence, channel_key=b"x" * 32), "report data"),
        (lambda evidence: replace(evidence, measurement=b"x" * 32), "report data"),
        (lambda evidence: replace(evidence, measurement=b"x" * 32), "release manifest"),
        (lambda evidence: replace(evidence, report=b"{}"), "evidence"),
        (lambda evidence: replace(evidence, tee="sev-snp"), "evidence"),
        (lambda evidence: replace(evidence, release=replace(evidence.release, checkpoint="x")), "evidence"),
        (lambda evidence: replace(evidence, release=replace(evidence.release, manifest=b"{}")), "evidence"),
        (lambda evidence: replace(evidence, release=replace(evidence.release, index=7)), "log inclusion"),
        (lambda evidence: replace(evidence, release=replace(evidence.release, log_key="a+b+c")), "release"),
        (lambda evidence: replace(evidence, release=replace(evidence.release, log_key="development/x")), "evidence"),
    ],
)
def test_altered_evidence_fails_by_name(node: FakeNode, change: Evidence, check: str) -> None:
    verification = examine(node.url, DEVELOPMENT, ask=altered(change))
    assert check in {each.name for each in verification.verdict.broken}
    assert not verification.passed


def test_evidence_made_for_another_nonce_fails(node: FakeNode) -> None:
    recorded = node.evidence(b"r" * 32, 0)
    verification = examine(node.url, DEVELOPMENT, ask=lambda address, nonce, since: recorded)
    assert {each.name for each in verification.verdict.broken} == {"report data"}


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"<html>", b"\xff" * 100, b"[" * 100_000, b" " * (2 << 20), b'{"version": 2}', b"null"],
)
def test_what_is_no_evidence_fails_and_is_not_read_to_no_end(body: bytes) -> None:
    async def handle(received: Received) -> Reply:
        return reply(200, body)

    with http_server(handle) as server:
        verification = examine(server.url, DEVELOPMENT)
    assert [check.name for check in verification.verdict.broken] == ["evidence"]
    assert not verification.channel_key and verification.key_id == ""


def test_a_server_that_has_no_evidence_is_not_a_node() -> None:
    async def handle(received: Received) -> Reply:
        return reply(404, b"{}")

    with http_server(handle) as server, pytest.raises(NodeNotVerified, match="404"):
        verify(server.url, DEVELOPMENT)


def test_a_redirect_is_not_followed(node: FakeNode) -> None:
    async def handle(received: Received) -> Reply:
        return reply(307, b"", location=f"{node.url}/v1/evidence")

    with http_server(handle) as server, pytest.raises(NodeNotVerified, match="307"):
        verify(server.url, DEVELOPMENT)
    assert not node.server.received


@pytest.mark.parametrize("status", [429, 503])
def test_a_node_that_is_busy_is_not_a_node_that_failed(status: int) -> None:
    async def handle(received: Received) -> Reply:
        return reply(status, b"{}")

    with http_server(handle) as server, pytest.raises(ServiceUnavailable):
        verify(server.url, DEVELOPMENT)


def test_nobody_there_is_said_so() -> None:
    with pytest.raises(ServiceUnavailable, match="Nothing answers"):
        verify("http://127.0.0.1:9", DEVELOPMENT)


def test_a_memory_that_was_tampered_with_is_not_passed_over(node: FakeNode, state: Path) -> None:
    verify(node.url, DEVELOPMENT)
    (state / "logs.json").write_text("{")
    with pytest.raises(SetupError, match="memory of logs"):
        verify(node.url, DEVELOPMENT)


def test_another_program_that_saw_more_of_the_log_is_not_overwritten(node: FakeNode, state: Path) -> None:
    """Between asking and remembering, another client verified a longer log: this one asks once more."""
    verify(node.url, DEVELOPMENT)
    asked = 0

    def ask(address: HttpAddress, nonce: bytes, since: int) -> NodeEvidence:
        nonlocal asked
        asked += 1
        evidence = ask_for_evidence(address, nonce, since)
        if asked == 1:
            verify(node.url, DEVELOPMENT)
            (state / "logs.json").unlink()  # as if another had begun anew
        return evidence

    assert verify(node.url, DEVELOPMENT, ask=ask).passed and asked == 2


def test_evidence_is_what_the_wire_carries(node: FakeNode) -> None:
    evidence = ask_for_evidence(HttpAddress.parse(node.url), b"n" * 32, 0)
    assert write_evidence(evidence) and evidence.channel_key == node.channel_key.public
    with pytest.raises(EvidenceInvalid):
        replace(evidence, channel_key=b"short").report_data(b"n" * 32)
