"""A node's evidence: fresh for each nonce, bound to channel key, release and statement, and never in the way."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from cloister.attest.attester import Attestation, SoftwareAttester, Tee, verify_software
from cloister.attest.evidence import NodeEvidence, Statement, read_evidence, read_statement
from cloister.channel.ohttp.keys import document_of
from cloister.controller.channel_keys import HELD_S, SHOWN_S, ChannelKeys
from cloister.controller.evidence import EvidenceMaker, find_release, running_release
from cloister.errors import SetupError
from cloister.messages.controller_gateway import AskEvidence, Evidence
from cloister.messages.generation import Failed
from cloister.transparency.checkpoint import ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.manifest import measure_running
from cloister.transparency.note import Algorithm, new_key_file, read_key_file
from cloister.transparency.proof import Release, development_release, publish, verify_release
from tests.attest.statements import made_statement
from tests.controller.test_sealed_requests import Wire

STATEMENT = made_statement(missing_layers=("memory_lock",))
NONCE = bytes(range(100, 132))


async def statement() -> Statement:
    return STATEMENT


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return development_release(tmp_path_factory.mktemp("development"))


class Office:
    def __init__(self, release: Release, attester: object | None = None, **more: int) -> None:
        self.keys = ChannelKeys()
        self.evidence_maker = EvidenceMaker(
            attester or SoftwareAttester(),  # type: ignore[arg-type]
            release,
            lambda: self.keys.shown,
            statement,
            **more,
        )
        self.frontend = Wire()

    async def evidence(self, nonce: bytes = NONCE, since: int = 0) -> NodeEvidence:
        self.evidence_maker.answer(self.frontend, AskEvidence(7, nonce, since))
        sent = await self.frontend.next(Evidence)
        assert sent.request_id == 7
        return read_evidence(sent.document)


@pytest.fixture
async def office(release: Release) -> AsyncIterator[Office]:
    office = Office(release)
    yield office
    await office.evidence_maker.close()


async def test_the_report_is_over_the_nonce_and_all_that_matters(office: Office, release: Release) -> None:
    evidence = await office.evidence()
    assert evidence.channel_key == office.keys.public and evidence.measurement == release.measurement
    at, said = datetime.now(UTC), read_statement(evidence.statement)
    times = {"made_ms": STATEMENT.made_ms, "key_until_ms": STATEMENT.key_until_ms}
    configurations = hashlib.sha256(document_of(office.keys.public)).digest()
    stated = replace(STATEMENT, code="unmeasured", oblivious=configurations, instance=said.instance)
    assert replace(said, **times) == stated, "this process runs whatever Python found"
    assert abs(said.made_ms / 1000 - at.timestamp()) < 60
    assert SHOWN_S < (said.key_until_ms - said.made_ms) / 1000 <= SHOWN_S + HELD_S, "it is held for as long as is said"
    good = verify_software(evidence.report, at=at, allowed=True, report_data=evidence.report_data(NONCE))
    assert good.passed
    stale = verify_software(evidence.report, at=at, allowed=True, report_data=evidence.report_data(bytes(32)))
    assert [check.name for check in stale.broken] == ["report data"]


async def test_the_release_is_proven_to_be_in_its_log(office: Office, release: Release) -> None:
    evidence = await office.evidence(since=0)
    assert evidence.release is not None
    trust = ReleaseTrust(logs=(release.log_key,))
    assert verify_release(evidence.release, evidence.measurement, at=datetime.now(UTC), trusted=trust, seen=None).passed
    assert (await office.evidence(since=1)).release.since == 1  # type: ignore[union-attr]


async def test_evidence_follows_the_channel_key(release: Release) -> None:
    office = Office(release)
    before = await office.evidence()
    office.keys.renew()
    after = await office.evidence()
    assert before.channel_key != after.channel_key == office.keys.public
    one, same = (read_statement(each.statement).instance for each in (before, after))
    await office.evidence_maker.close()
    other = Office(release)
    assert len(one) == 32 and one == same != read_statement((await other.evidence()).statement).instance
    await other.evidence_maker.close()


class Slow:
    """Firmware that takes its time."""

    tee: Tee = "sev-snp"

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.asked: list[bytes] = []

    def attest(self, report_data: bytes) -> Attestation:
        self.asked.append(report_data)
        assert self.may_go_on.wait(30)
        return Attestation("sev-snp", b"report", (b"certificate",), b"collateral")


async def test_slow_firmware_holds_nobody_up_and_only_so_many_wait(release: Release) -> None:
    slow = Slow()
    office = Office(release, slow, most=2)
    for number in range(3):
        office.evidence_maker.answer(office.frontend, AskEvidence(number, bytes([number]) * 32))
    refused = await office.frontend.next(Failed)
    assert (refused.request_id, refused.code) == (2, "queue_full")
    await asyncio.sleep(0.01)  # the loop turns while the firmware does not answer
    slow.may_go_on.set()
    evidence = read_evidence((await office.frontend.next(Evidence)).document)
    assert (evidence.tee, evidence.certificates, evidence.collateral) == ("sev-snp", (b"certificate",), b"collateral")
    assert evidence.report_data(bytes(32)) == slow.asked[0]
    await office.frontend.next(Evidence)
    await office.evidence_maker.close()


@pytest.mark.parametrize("error", [SetupError("The firmware gave no report."), RuntimeError("with something in it")])
async def test_a_report_that_cannot_be_had_is_an_error_of_its_own(release: Release, error: Exception) -> None:
    class Broken(Slow):
        def attest(self, report_data: bytes) -> Attestation:
            raise error

    office = Office(release, Broken())
    office.evidence_maker.answer(office.frontend, AskEvidence(1, NONCE))
    failed = await office.frontend.next(Failed)
    assert failed.code == ("setup_error" if isinstance(error, SetupError) else "internal_error")
    assert "something" not in failed.message
    await office.evidence_maker.close()


# ---- which release


def a_log(folder: Path, *manifests: bytes) -> Path:
    new_key_file(folder / "key", "example.org/releases")
    key = read_key_file(folder / "key", Algorithm.ED25519)
    log = Log.create(folder / "log", key)
    for manifest in manifests:
        publish(log, manifest, key)
    return folder / "log"


def test_the_release_that_runs_is_found_in_its_log(tmp_path: Path) -> None:
    running = measure_running()
    other = running.__class__(running.format, "0.0.1", running.files, running.lock, running.image)
    released = running.__class__(running.format, running.version, running.files, running.lock, "sha256:" + "ab" * 32)
    log = a_log(tmp_path, other.encoded(), released.encoded())
    assert find_release(log).manifest == released.encoded()
    assert find_release(log).prove(0).index == 1


def test_a_log_without_it_or_no_log_is_refused(tmp_path: Path) -> None:
    running = measure_running()
    changed = {**running.files, "src/cloister/__init__.py": "00" * 32}
    other = running.__class__(running.format, running.version, changed, running.lock, running.image)
    with pytest.raises(SetupError, match="No release"):
        find_release(a_log(tmp_path, other.encoded()))
    with pytest.raises(SetupError):
        find_release(tmp_path / "nothing")


def test_only_a_process_that_is_held_to_the_release_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path, measure_running().encoded())
    assert running_release(None).manifest == measure_running().encoded()
    with pytest.raises(SetupError, match="not started from the release's files alone"):
        running_release(log)

    class Held:
        measurement = measure_running().measurement()
        checked = 0

        def check_loaded(self) -> None:
            self.checked += 1

    held = Held()
    monkeypatch.setattr("cloister.process.release_code.running", held)
    assert running_release(log).measurement == held.measurement and held.checked == 1
    held.measurement = bytes(32)
    with pytest.raises(SetupError):
        running_release(log)


async def test_evidence_says_whether_the_code_was_measured(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_statement((await office.evidence()).statement).code == "unmeasured"
    monkeypatch.setattr("cloister.process.release_code.running", object())
    assert read_statement((await office.evidence()).statement).code == "release"
