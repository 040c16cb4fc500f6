"""Evidence from an Azure VM's vTPM: made by a node, verified by a client, refused where anything is another's."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cloister.attest import machine as machine_module
from cloister.attest import node as node_module
from cloister.attest.attester import NoFirmware, SoftwareAttester
from cloister.attest.azure import attester as azure_module
from cloister.attest.azure.attester import ENDORSED_S, MAX_ANSWER_BYTES, AzureAttester, Metadata, Tpm, TpmDevice
from cloister.attest.azure.verify import AzurePolicy, verify_azure
from cloister.attest.evidence import NodeEvidence, Statement
from cloister.attest.machine import find_attester
from cloister.attest.node import verify_node
from cloister.attest.policy import Policy
from cloister.attest.snp import SnpPolicy
from cloister.attest.tdx import Launch, TdxPolicy
from cloister.checks import Verdict
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.evidence import EvidenceMaker
from cloister.errors import CloisterError, SetupError
from cloister.transparency.proof import Release, development_release
from tests.attest.azure_made import PCRS, MadeTpm, MadeVm, response
from tests.attest.snp_maker import AT, Chip, rsa_key
from tests.attest.statements import made_statement
from tests.fuzz.tdx_made import NOW, MadePlatform

VM = MadeVm()
NONCE, OTHER_NONCE = b"n" * 32, b"o" * 32
ASKED = bytes(range(64))
LAUNCH = Launch(mrtd="11" * 48, rtmr0="30" * 48, rtmr1="31" * 48, rtmr2="32" * 48)
POLICY = Policy(
    tees=("azure",),
    snp=SnpPolicy(measurements=("aa" * 48,)),
    tdx=TdxPolicy(launches=(LAUNCH,)),
    azure=AzurePolicy(pcrs={"7": (PCRS[7].hex(),)}),
    snp_revocation_lists=(VM.chip.revocation_list(99),),
)


def pem(der: bytes) -> bytes:
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)


class Certified:
    """The metadata service of a VM of ours."""

    def __init__(self, chip: Chip = VM.chip, platform: MadePlatform | None = None) -> None:
        self.chip = chip
        self.platform = platform
        self.asked = 0

    def amd_certificates(self) -> tuple[bytes, bytes]:
        self.asked += 1
        return pem(self.chip.leaf()), pem(self.chip.ask) + pem(self.chip.ark)

    def td_quote(self, report: bytes) -> bytes:
        self.asked += 1
        assert self.platform is not None and len(report) == 1024
        return self.platform.quote(report_data=report[128:192])


def attester(tpm: MadeTpm | None = None, metadata: Any = None, **more: Any) -> AzureAttester:
    return AzureAttester(Tpm(tpm or MadeTpm(VM)), metadata or Certified(), **more)


class Office:
    """A node on such a VM, and its client."""

    def __init__(self, release: Release, source: AzureAttester) -> None:
        keys = ChannelKeys()
        self.maker = EvidenceMaker(source, release, lambda: keys.shown, self.statement)

    async def statement(self) -> Statement:
        return made_statement()

    async def evidence(self, nonce: bytes = NONCE) -> NodeEvidence:
        try:
            return await self.maker.evidence(nonce)
        finally:
            await self.maker.close()


def verify(evidence: NodeEvidence, policy: Policy = POLICY, *, at: Any = AT) -> Verdict:
    with pytest.MonkeyPatch.context() as patch:
        trusting = partial(verify_azure, snp_roots=VM.chip.roots, tdx_roots=PLATFORM.roots)
        patch.setattr(node_module, "verify_azure", trusting)
        return verify_node(evidence, NONCE, at=at, policy=policy)


PLATFORM = MadePlatform()


def broken(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.broken}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return development_release(tmp_path_factory.mktemp("development"))


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of this node counts as compared with its release."""
    monkeypatch.setattr("cloister.process.release_code.running", object())


async def test_a_node_on_azure_is_verified_through_its_vtpm(release: Release) -> None:
    evidence = await Office(release, attester()).evidence()
    verdict = verify(evidence)
    assert verdict.passed, verdict.broken
    assert verdict.claims["tee"] == "azure" and verdict.claims["report"]["pcrs"]["7"] == PCRS[7].hex()
    assert {"runtime data", "vtpm key", "tpm quote", "nonce", "pcrs", "launch"} <= {one.name for one in verdict.checks}


async def test_a_policy_must_name_azure_and_the_guests_pcrs(release: Release) -> None:
    evidence = await Office(release, attester()).evidence()
    assert "tee" in broken(verify(evidence, replace(POLICY, tees=Policy().tees)))
    assert broken(verify(evidence, replace(POLICY, azure=AzurePolicy()))) == {"pcrs"}
    assert broken(verify(evidence, replace(POLICY, snp=SnpPolicy()))) == {"launch"}
    assert broken(verify(evidence, replace(POLICY, snp_revocation_lists=()))) == {"revocation"}


def spliced(evidence: NodeEvidence, **parts: Any) -> NodeEvidence:
    return replace(evidence, report=json.dumps(json.loads(evidence.report) | parts).encode())


async def test_what_is_anothers_is_refused_by_name(release: Release) -> None:
    evidence = await Office(release, attester()).evidence()
    stale = await Office(release, attester()).evidence(OTHER_NONCE)
    assert broken(verify(stale)) == {"nonce"}
    assert broken(verify(replace(evidence, channel_key=b"x" * 32))) == {"nonce"}
    other_vm = MadeVm(VM.chip, rsa_key("another vm"))
    borrowed = await Office(release, attester(MadeTpm(other_vm))).evidence()
    mixed = spliced(evidence, hcl_report=json.loads(borrowed.report)["hcl_report"])
    assert broken(verify(mixed)) == {"tpm quote"}, "the report of another machine names another key"
    assert broken(verify(spliced(evidence, tpm_quote=json.loads(borrowed.report)["tpm_quote"]))) == {
        "tpm quote",
        "nonce",
    }
    assert broken(verify_node(evidence, NONCE, at=AT, policy=POLICY)) == {"root key"}, "our root is not AMD's"
    assert broken(verify(replace(evidence, certificates=()))) >= {"certificate chain"}


async def test_a_changed_guest_is_refused(release: Release) -> None:
    tpm = MadeTpm(VM)
    source = attester(tpm)
    tpm.pcrs[7] = b"\xee" * 32
    assert broken(verify(await Office(release, source).evidence())) == {"pcrs"}
    tpm.pcrs[7], tpm.pcrs[11] = PCRS[7], b"\xee" * 32
    assert verify(await Office(release, source).evidence()).passed, "the policy does not name that one"


async def test_a_td_under_the_paravisor_brings_intels_quote(release: Release) -> None:
    bound = hashlib.sha256(VM.runtime()).digest() + bytes(32)
    tpm = MadeTpm(VM, VM.hcl(report=bytes(128) + bound, kind=4))
    evidence = await Office(release, attester(tpm, Certified(platform=PLATFORM))).evidence()
    rules = replace(POLICY, tdx_collateral=PLATFORM.collateral())
    verdict = verify(evidence, rules, at=NOW)
    assert verdict.passed, verdict.broken
    assert not verify(evidence, at=NOW).passed, "without Intel's collateral nothing says that the quote is good"


# ---- the source


def test_the_report_is_over_the_bytes_that_were_asked_for() -> None:
    tpm = MadeTpm(VM)
    made = attester(tpm).attest(ASKED)
    document = json.loads(made.report)
    message = bytes.fromhex(document["tpm_quote"]["message"])
    assert made.tee == "azure" and hashlib.sha256(ASKED).digest() in message and ASKED not in message
    assert len(document["tpm_quote"]["pcrs"]) == 24 and "td_quote" not in document
    assert base64.urlsafe_b64decode(document["hcl_report"] + "==") == tpm.indexes[0x01400001]
    names = [x509.load_der_x509_certificate(one).subject for one in made.certificates]
    assert len(names) == 3 and names[0] == x509.load_der_x509_certificate(VM.chip.leaf()).subject
    with pytest.raises(SetupError, match="64 bytes"):
        attester().attest(ASKED[:32])


def test_certificates_are_asked_for_again_after_an_hour() -> None:
    now = [0.0]
    certified = Certified()
    source = attester(metadata=certified, clock=lambda: now[0])
    source.attest(ASKED)
    assert certified.asked == 1
    now[0] = ENDORSED_S
    source.attest(ASKED)
    assert certified.asked == 2


def test_a_pcr_that_changes_meanwhile_is_quoted_again() -> None:
    tpm = MadeTpm(VM)
    changes = iter([b"\x01" * 32, b"\x02" * 32])
    tpm.after_quote = lambda: tpm.pcrs.__setitem__(10, next(changes, tpm.pcrs[10]))
    assert attester(tpm).attest(ASKED)
    tpm.after_quote = lambda: tpm.pcrs.__setitem__(10, hashlib.sha256(tpm.pcrs[10]).digest())
    with pytest.raises(SetupError, match="keep changing"):
        attester(tpm)


def test_a_vm_whose_vtpm_is_not_the_reported_one_does_not_start() -> None:
    tpm = MadeTpm(VM)
    tpm.keys = {0x81000003: rsa_key("thief")}
    with pytest.raises(SetupError, match="not the one that the paravisor reported"):
        attester(tpm)
    tpm.keys = {}
    with pytest.raises(SetupError):
        attester(tpm)
    unnamed = MadeTpm(VM, VM.hcl(VM.runtime(keys=[])))
    with pytest.raises(SetupError, match="names no key"):
        attester(unnamed)
    with pytest.raises(SetupError, match="cannot be used"):
        attester(MadeTpm(VM, b"something else"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "another length"),
        (response(0)[:-1], "another length"),
        (response(0x101), "0x101"),
        (response(0), "ends early"),
        (response(0, struct.pack(">H", 500)), "ends early"),
    ],
)
def test_an_answer_of_another_form_is_an_error_of_ours(answer: bytes, words: str) -> None:
    tpm = MadeTpm(VM)
    tpm.answers = [answer]
    with pytest.raises(SetupError, match=words):
        attester(tpm)


def test_a_tpm_that_is_busy_is_asked_again() -> None:
    tpm = MadeTpm(VM)
    tpm.answers = [response(0x922)] * 3
    assert attester(tpm)
    tpm.answers = [response(0x922)] * 9
    with pytest.raises(SetupError, match="0x922"):
        attester(tpm)


def test_an_index_that_is_too_large_is_not_read() -> None:
    tpm = MadeTpm(VM, bytes(20_000))
    with pytest.raises(SetupError, match="20000 bytes"):
        attester(tpm)
    assert tpm.commands == [0x169]


@given(st.integers(0, 40), st.binary(max_size=64))
def test_no_bytes_of_a_tpm_make_it_fail_otherwise(position: int, data: bytes) -> None:
    class Lying(MadeTpm):
        def transmit(self, command: bytes) -> bytes:
            answer = super().transmit(command)
            if len(self.commands) - 1 != position:
                return answer
            body = data + answer[10 + len(data) :]
            return struct.pack(">HII", 0x8002, 10 + len(body), 0) + body

    try:
        attester(Lying(VM))
    except CloisterError as wrong:
        assert isinstance(wrong, SetupError)


# ---- which source


def test_it_is_chosen_where_the_machine_is_azures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = tmp_path / "absent"
    monkeypatch.setattr(machine_module, "CHASSIS", nothing)
    assert isinstance(find_attester("auto", nothing), SoftwareAttester)
    chassis = tmp_path / "chassis"
    chassis.write_text("7783-7084-3265-9085-8269-3286-77\n")
    monkeypatch.setattr(machine_module, "CHASSIS", chassis)
    monkeypatch.setattr(azure_module, "DEVICE", tmp_path)
    tpm = MadeTpm(VM)
    monkeypatch.setattr(azure_module, "TpmDevice", lambda: tpm)
    monkeypatch.setattr(azure_module, "Metadata", Certified)
    assert find_attester("auto", nothing).tee == "azure" == find_attester("azure", nothing).tee
    tpm.indexes = {}
    assert isinstance(find_attester("auto", nothing), SoftwareAttester), "an Azure VM that is not confidential"
    with pytest.raises(NoFirmware, match="no report of Azure's paravisor"):
        find_attester("azure", nothing)
    tpm.indexes, tpm.keys = {0x01400001: VM.hcl()}, {0x81000003: rsa_key("thief")}
    with pytest.raises(SetupError, match="paravisor reported"):
        find_attester("auto", nothing)
    monkeypatch.setattr(azure_module, "DEVICE", nothing)
    with pytest.raises(NoFirmware, match="no vTPM"):
        find_attester("azure", nothing)


def test_a_device_that_does_not_answer_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="ENOENT"):
        TpmDevice(tmp_path / "absent").transmit(b"command")


# ---- the metadata service


@contextmanager
def service(status: int, body: bytes) -> Iterator[tuple[Metadata, list[tuple[str, str, bytes]]]]:
    """Answers everything in one way; what it was asked."""
    asked: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata"] == "true"
            given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.command, self.path, given))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield Metadata("127.0.0.1", server.server_address[1]), asked
        server.shutdown()
        thread.join()


def test_the_metadata_service_is_asked_as_azure_documents_it() -> None:
    told = {"vcekCert": "leaf", "certificateChain": "chain", "tcbm": "0", "cacheControl": "86400"}
    with service(200, json.dumps(told).encode()) as (metadata, asked):
        assert metadata.amd_certificates() == (b"leaf", b"chain")
        assert [(method, path) for method, path, _ in asked] == [("GET", "/metadata/THIM/amd/certification")]
    with service(200, b'{"quote": "-_8"}') as (metadata, asked):
        assert metadata.td_quote(b"\xff" * 3) == b"\xfb\xff"
        ((method, path, body),) = asked
        assert (method, path) == ("POST", "/acc/tdquote") and msgspec.json.decode(body) == {"report": "____"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"{}"),
        (200, b"{}"),
        (200, b"nonsense"),
        (200, b'{"quote": 1}'),
        (200, b'{"quote": "a"}'),
        (200, b" " * (MAX_ANSWER_BYTES + 1)),
    ],
)
def test_a_metadata_service_that_answers_otherwise_is_a_setup_error(status: int, body: bytes) -> None:
    with service(status, body) as (metadata, _), pytest.raises(SetupError, match="metadata service"):
        metadata.td_quote(b"report")


def test_a_metadata_service_that_is_not_there_is_a_setup_error() -> None:
    with service(200, b"") as (metadata, _):
        pass
    with pytest.raises(SetupError, match="does not answer"):
        metadata.amd_certificates()
