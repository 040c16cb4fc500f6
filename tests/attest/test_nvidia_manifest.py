"""NVIDIA's reference manifests, made in their form: signature, chain, golden values, and what reports make of them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.nvidia.manifest import Manifest, verify_manifest
from cloister.attest.nvidia.reports import GpuPolicy, References, verify_gpu_reports
from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid
from tests.fuzz.nvidia_made import NONCE, NOW, MadeGpu, MadeManifests, swid_tag

GPU = MadeGpu()
SIGNER = MadeManifests()
DRIVER = {1: (b"\2" * 48,)}
VBIOS = {0: (b"\1" * 48,), 2: (b"\xff" * 48, b"\3" * 48)}
DRIVER_TAG, VBIOS_TAG = swid_tag("590.12", DRIVER), swid_tag("96.00.A5.00.01", VBIOS)
DRIVER_MANIFEST, VBIOS_MANIFEST = SIGNER.sign(DRIVER_TAG), SIGNER.sign(VBIOS_TAG)


def read(data: bytes, *, at: datetime = NOW, signer: MadeManifests = SIGNER) -> tuple[Manifest | None, list[str]]:
    found = Examination()
    manifest = verify_manifest(data, signer.roots, at, found)
    return manifest, [check.name for check in found.verdict().broken]


def verify(*manifests: bytes, gpu: MadeGpu = GPU, report: bytes | None = None, **policy: Any) -> Verdict:
    return verify_gpu_reports(
        report or gpu.report(),
        NONCE,
        at=NOW,
        policy=GpuPolicy(**policy),
        chain=gpu.chain,
        references=References(manifests, manifest_roots=SIGNER.roots),
        roots=gpu.roots,
    )


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


def test_a_signed_manifest_is_read() -> None:
    manifest, wrong = read(VBIOS_MANIFEST)
    assert manifest and not wrong
    assert (manifest.version, manifest.product) == ("96.00.A5.00.01", "GH100")
    assert manifest.golden == {index: frozenset(values) for index, values in VBIOS.items()}


def test_another_root_another_date_and_another_signer_are_refused() -> None:
    assert read(DRIVER_MANIFEST, signer=MadeManifests()) == (None, ["certificate chain", "signature"])
    assert read(DRIVER_MANIFEST, at=NOW + timedelta(days=800))[1] == ["certificate dates"]
    theirs = MadeManifests(root=SIGNER.root, authority=SIGNER.authority).sign(DRIVER_TAG)
    ours, signed = DRIVER_MANIFEST.split(b"<ds:KeyInfo>"), theirs.split(b"<ds:KeyInfo>")
    assert read(signed[0] + b"<ds:KeyInfo>" + ours[1]) == (None, ["signature"])


def test_only_p384_over_sha384_counts() -> None:
    p256 = MadeManifests(key=ec.generate_private_key(ec.SECP256R1()))
    assert read(p256.sign(DRIVER_TAG), signer=p256) == (None, ["signature"])
    for weaker in ({"digest_algorithm": "sha256"}, {"signature_algorithm": "ecdsa-sha256"}):
        assert read(SIGNER.sign(DRIVER_TAG, **weaker)) == (None, ["signature"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"590.12", b"590.13"),
        (b"02" * 48, b"03" * 48),
        (b'active="True"', b'active="False"'),
        (b'index="1"', b'index="9"'),
        (b"</SoftwareIdentity>", b"<x/></SoftwareIdentity>"),
    ],
)
def test_altered_manifests_are_refused(old: bytes, new: bytes) -> None:
    assert DRIVER_MANIFEST.count(old) >= 1
    assert read(DRIVER_MANIFEST.replace(old, new, 1))[1] == ["signature"]


def test_a_signed_manifest_wrapped_in_another_is_refused() -> None:
    """The signature is the root's own child, and what it covers is what is read."""
    outer = swid_tag("590.12", {1: (b"\xee" * 48,)})
    with pytest.raises(EvidenceInvalid, match="no certificate"):
        read(outer.replace("</SoftwareIdentity>", DRIVER_MANIFEST.decode() + "</SoftwareIdentity>").encode())
    start = DRIVER_MANIFEST.index(b"<ds:Signature ")
    signature = DRIVER_MANIFEST[start : DRIVER_MANIFEST.index(b"</ds:Signature>") + len(b"</ds:Signature>")]
    moved = outer.encode().replace(b"</SoftwareIdentity>", signature + b"</SoftwareIdentity>")
    assert read(moved) == (None, ["signature"])


def test_only_what_the_signature_covers_is_read() -> None:
    """A signer's word over a part is no word on the rest."""
    inner = DRIVER_TAG.replace('tagId="00"', 'tagId="00" Id="part"')
    outer = swid_tag("590.12", {1: (b"\xee" * 48,)}).replace("</SoftwareIdentity>", inner + "</SoftwareIdentity>")
    manifest, wrong = read(SIGNER.sign(outer, reference_uri="#part"))
    assert manifest and not wrong
    assert manifest.golden == {1: frozenset(DRIVER[1])}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"<a/>", b"\xff", b"<" * 5000, b" " * 300_000),
        b'<!DOCTYPE a [<!ENTITY x "y">]>' + DRIVER_MANIFEST,
        DRIVER_MANIFEST.replace(b"<ds:X509Certificate>", b"<ds:X509Certificate>AA", 1),
        DRIVER_MANIFEST + b"<more/>",
    ],
)
def test_malformed_manifests_are_named(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid, match="manifest"):
        read(data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('colloquialVersion="590.12"', ""),
        ('index="2"', 'index="1"'),
        ('index="2"', 'index="300"'),
        ('index="2"', ""),
        ('active="True" alternatives="1"', 'active="True" alternatives="2"'),
        ('active="True" alternatives="1"', 'active="True" alternatives="0"'),
        ("02" * 48, "02" * 47),
        ("02" * 48, "zz" * 48),
        ('active="True"', 'active="False"'),
        ("<ns0:Meta", "<ns0:Meta/><ns0:Meta"),
    ],
)
def test_what_is_signed_must_make_sense(old: str, new: str) -> None:
    assert old in DRIVER_TAG
    with pytest.raises(EvidenceInvalid, match="manifest"):
        read(SIGNER.sign(DRIVER_TAG.replace(old, new, 1)))


def test_reports_that_measure_as_the_manifests_pass() -> None:
    verdict = verify(DRIVER_MANIFEST, VBIOS_MANIFEST)
    assert verdict.passed, verdict.broken
    assert {"gpu 0: driver manifest", "gpu 0: vbios manifest"} <= {check.name for check in verdict.checks}


def test_other_measurements_other_versions_and_missing_manifests_are_refused() -> None:
    assert broken(verify(DRIVER_MANIFEST)) == ["gpu 0: vbios manifest"]
    assert broken(verify(VBIOS_MANIFEST)) == ["gpu 0: driver manifest"]
    other = SIGNER.sign(swid_tag("590.12", {1: (b"\xee" * 48,), 63: (b"\2" * 48,)}))
    verdict = verify(other, VBIOS_MANIFEST)
    assert broken(verdict) == ["gpu 0: driver manifest"]
    assert verdict.broken[0].reason.endswith("at 1, 63")
    # Another chip's manifest of the same version may lie beside the right one.
    assert verify(other, DRIVER_MANIFEST, VBIOS_MANIFEST).passed
    assert broken(verify(SIGNER.sign(swid_tag("590.13", DRIVER)), VBIOS_MANIFEST)) == ["gpu 0: driver manifest"]
    # One that does not hold is not used, and fails the whole.
    forged = DRIVER_MANIFEST.replace(b"02" * 48, b"03" * 48)
    assert broken(verify(forged, VBIOS_MANIFEST)) == ["manifest 0: signature", "gpu 0: driver manifest"]
    assert broken(verify(forged, DRIVER_MANIFEST, VBIOS_MANIFEST)) == ["manifest 0: signature"]


def test_manifests_and_the_policys_own_measurements_must_both_hold() -> None:
    assert verify(DRIVER_MANIFEST, VBIOS_MANIFEST, measurements={"0": ("01" * 48,)}).passed
    assert broken(verify(DRIVER_MANIFEST, VBIOS_MANIFEST, measurements={"0": ("02" * 48,)})) == ["gpu 0: measurements"]
    assert broken(verify(DRIVER_MANIFEST, allow_unmeasured=True)) == ["gpu 0: vbios manifest"]


def test_driver_and_vbios_may_not_claim_one_measurement() -> None:
    both = SIGNER.sign(swid_tag("590.12", {0: (b"\1" * 48,), **DRIVER}))
    assert broken(verify(both, VBIOS_MANIFEST)) == ["gpu 0: manifests distinct"]


def test_the_video_decoder_is_compared_only_where_it_is_on() -> None:
    with_decoder = SIGNER.sign(swid_tag("590.12", {**DRIVER, 35: (b"\xdd" * 48,)}))
    for status, passes in ((b"\x55", True), (b"\xaa", False), (None, False)):
        report = GPU.report(opaque={11: status}, blocks=36)
        verdict = verify(with_decoder, VBIOS_MANIFEST, report=report)
        assert verdict.passed is passes, status


def test_a_switch_needs_only_the_manifest_of_its_bios() -> None:
    switch = MadeGpu("LS_10")
    report = switch.report(opaque={3: None, 6: b"96.10.55.00.01"})
    manifest = SIGNER.sign(swid_tag("96.10.55.00.01", VBIOS, product="LS10"))
    assert verify(manifest, gpu=switch, report=report, architectures=("LS10",)).passed
    # A GPU cannot leave out its driver.
    mute = GPU.report(opaque={3: None})
    assert broken(verify(VBIOS_MANIFEST, report=mute)) == ["gpu 0: driver manifest"]


@settings(max_examples=40)
@given(st.binary(max_size=64), st.integers(0, len(DRIVER_MANIFEST)))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    for whole in (data, b"<" + data, DRIVER_MANIFEST[:at] + data + DRIVER_MANIFEST[at + len(data) :]):
        with contextlib.suppress(EvidenceInvalid):
            manifest, _ = read(whole)
            assert manifest is None or manifest.golden == {1: frozenset(DRIVER[1])}
