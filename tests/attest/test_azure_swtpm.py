"""The commands to a vTPM, spoken to a TPM that others wrote (libtpms, after TCG's reference): read, quote, PCRs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from cloister.attest.azure.attester import AzureAttester, NoSuchHandle, Tpm
from cloister.attest.azure.hcl import quote_nonce, read_tpm_quote
from cloister.attest.azure.verify import AzurePolicy, verify_azure
from cloister.attest.snp import SnpPolicy
from cloister.attest.tdx import TdxPolicy
from cloister.checks import Verdict
from tests.attest.azure_made import MadeVm
from tests.attest.snp_maker import AT, Chip
from tests.attest.swtpm import HCL_INDEX, KEY_HANDLE, PROGRAM, SoftwareTpm, running_tpm
from tests.attest.test_azure_attester import Certified

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="swtpm is not installed (apt-get install swtpm)")

ASKED = bytes(range(64))
EXTENDED = {"7": (hashlib.sha256(bytes(32) + b"\x07" * 32).hexdigest(),)}


class Reported(MadeVm):
    """A VM whose vTPM's key is known by its public half alone."""

    def __init__(self, key: rsa.RSAPublicKey) -> None:
        super().__init__(Chip())
        self._public = key
        self.key = self  # type: ignore[assignment]

    def public_key(self) -> rsa.RSAPublicKey:
        return self._public


@pytest.fixture
def tpm(tmp_path: Path) -> Iterator[SoftwareTpm]:
    with running_tpm(tmp_path) as tpm:
        yield tpm


def verify(evidence: bytes, vm: MadeVm, certificates: tuple[bytes, ...], asked: bytes = ASKED) -> Verdict:
    pieces = (*certificates, vm.chip.revocation_list(99))
    rules = {"policy": AzurePolicy(pcrs=EXTENDED), "snp": SnpPolicy(measurements=("aa" * 48,)), "tdx": TdxPolicy()}
    return verify_azure(evidence, pieces, None, quote_nonce(asked), at=AT, snp_roots=vm.chip.roots, **rules)


def test_evidence_of_a_real_tpm_is_verified(tpm: SoftwareTpm) -> None:
    vm = Reported(tpm.make_attestation_key())
    tpm.write_index(vm.hcl().rstrip(b"\0"))  # libtpms allows 2 KiB for one index, Azure more
    tpm.extend(7, b"\x07" * 32)
    source = AzureAttester(Tpm(tpm), Certified(vm.chip))
    made = source.attest(ASKED)
    verdict = verify(made.report, vm, made.certificates)
    assert verdict.passed, verdict.broken
    assert [one.name for one in verify(made.report, vm, made.certificates, bytes(64)).broken] == ["nonce"]
    tpm.extend(7, b"\x08" * 32)
    assert [one.name for one in verify(source.attest(ASKED).report, vm, made.certificates).broken] == ["pcrs"]


def test_quotes_and_pcrs_are_as_the_tpm_has_them(tpm: SoftwareTpm) -> None:
    key = tpm.make_attestation_key()
    commands = Tpm(tpm)
    message, signature = commands.quote(KEY_HANDLE, b"q" * 32, range(24))
    key.verify(signature, message, padding.PKCS1v15(), SHA256())
    quote, pcrs = read_tpm_quote(message), commands.read_pcrs(range(24))
    assert quote.nonce == b"q" * 32 and quote.covers(pcrs) and len(pcrs) == 24
    tpm.extend(4, b"\x04" * 32)
    assert not quote.covers(commands.read_pcrs(range(24)))
    assert commands.read_pcrs((4,)) == {4: hashlib.sha256(bytes(32) + b"\x04" * 32).digest()}


def test_an_index_is_read_whole(tpm: SoftwareTpm) -> None:
    data = bytes(range(256)) * 5 + b"end"
    with pytest.raises(NoSuchHandle):
        Tpm(tpm).read_index(HCL_INDEX)
    with pytest.raises(NoSuchHandle):
        Tpm(tpm).quote(KEY_HANDLE, bytes(32), (0,))
    tpm.write_index(data)
    assert Tpm(tpm).read_index(HCL_INDEX) == data
