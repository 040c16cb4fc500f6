"""The verdict on TDX quotes, with self-made platforms under a root of our own."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.attest.tdx import Launch, TdxPolicy, verify_tdx
from cloister.attest.tdx.quote import read_quote
from cloister.attest.tdx.verify import judge, read_collateral
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.fuzz.tdx_made import NOW, SEPT_VE_DISABLE, MadePlatform, p256

PLATFORM = MadePlatform()
REGISTERS = {"mrtd": "11" * 48, "rtmr0": "30" * 48, "rtmr1": "31" * 48, "rtmr2": "32" * 48}
LAUNCH = Launch(**REGISTERS)
COLLATERAL = PLATFORM.collateral()


def verify(
    quote: bytes | None = None,
    collateral: bytes | None = COLLATERAL,
    *,
    at: datetime = NOW,
    report_data: bytes | None = None,
    platform: MadePlatform = PLATFORM,
    **policy: Any,
) -> Verdict:
    quote = platform.quote() if quote is None else quote
    rules = TdxPolicy(**{"launches": (LAUNCH,)} | policy)
    return verify_tdx(quote, collateral, at=at, policy=rules, report_data=report_data, roots=platform.roots)


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


def failed(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.checks if check.outcome is Outcome.FAIL]


@pytest.mark.parametrize(("version", "body"), [(4, 2), (5, 2), (5, 3), (5, 4)])
def test_every_kind_of_quote_passes_with_collateral(version: int, body: int) -> None:
    verdict = verify(PLATFORM.quote(version, body, report_data=b"\7" * 64), report_data=b"\7" * 64)
    assert verdict.passed, verdict.broken
    assert verdict.claims["tcb_status"] == "UpToDate"
    assert verdict.claims["mrtd"] == "11" * 48


@pytest.mark.parametrize(("version", "body"), [(4, 2), (5, 3)])
def test_without_collateral_signatures_pass_and_the_verdict_is_incomplete(version: int, body: int) -> None:
    verdict = verify(PLATFORM.quote(version, body), None)
    assert verdict.incomplete
    assert broken(verdict) == ["collateral", "tcb status"]
    outcomes = {check.name: check.outcome for check in verdict.checks}
    for name in ("quote signature", "attestation key", "qe report signature", "certificate chain"):
        assert outcomes[name] is Outcome.PASS


def test_the_real_root_is_the_default() -> None:
    verdict = verify_tdx(PLATFORM.quote(), COLLATERAL, at=NOW, policy=TdxPolicy(), report_data=None)
    assert failed(verdict) == ["certificate chain"]


@pytest.mark.parametrize(
    "status", ["OutOfDate", "SWHardeningNeeded", "ConfigurationNeeded", "OutOfDateConfigurationNeeded"]
)
def test_a_status_passes_only_where_the_policy_accepts_it(status: Any) -> None:
    collateral = PLATFORM.collateral(status, ("INTEL-SA-00615",))
    assert broken(verify(None, collateral)) == ["tcb status"]
    verdict = verify(None, collateral, accepted_statuses=("UpToDate", status))
    assert verdict.passed
    assert {check.name: check.allowed_by for check in verdict.checks if check.allowed_by} == {
        "tcb status": f"accepted_statuses {status}"
    }
    assert verdict.claims["tcb_status"] == status
    assert verdict.claims["advisories"] == ["INTEL-SA-00615"]
    assert broken(verify(None, collateral, accepted_statuses=(status,), refused_advisories=("INTEL-SA-00615",))) == [
        "advisories"
    ]
    assert broken(verify(None, collateral, accepted_statuses=(status,), accepted_advisories=("INTEL-SA-1",))) == [
        "advisories"
    ]
    assert verify(None, collateral, accepted_statuses=(status,), accepted_advisories=("INTEL-SA-00615",)).passed


def test_a_revoked_status_can_be_accepted_by_nobody() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"accepted_statuses": ["UpToDate", "Revoked"]}, TdxPolicy)
    verdict = verify(None, PLATFORM.collateral("Revoked"))
    assert not verdict.passed


def test_a_platform_below_every_level_fails_whatever_the_policy() -> None:
    verdict = verify(None, PLATFORM.collateral(floor=9), accepted_statuses=("UpToDate", "OutOfDate"))
    assert failed(verdict) == ["tcb status"]
    assert "older than every" in next(check.reason for check in verdict.broken if check.name == "tcb status")


def test_old_collateral_that_has_not_expired_is_refused_by_its_number() -> None:
    assert verify(None, PLATFORM.collateral(evaluation=18), min_tcb_evaluation=18).passed
    assert broken(verify(None, PLATFORM.collateral(evaluation=17), min_tcb_evaluation=18)) == ["tcb evaluation"]


@pytest.mark.parametrize("days", [-20, 26])
def test_collateral_is_judged_at_the_time_given(days: int) -> None:
    assert failed(verify(at=NOW + timedelta(days=days))) == ["collateral"]


def test_a_revoked_platform_is_refused() -> None:
    assert failed(verify(None, PLATFORM.collateral(revoked=True))) == ["collateral"]


def test_collateral_of_another_root_is_refused() -> None:
    assert failed(verify(None, MadePlatform().collateral())) == ["collateral"]


@pytest.mark.parametrize("name", ["tcb_info", "qe_identity", "tcb_info_signature", "qe_identity_signature"])
def test_altered_collateral_is_refused(name: str) -> None:
    collateral = json.loads(COLLATERAL)
    value: str = collateral[name]
    altered = ("1" if value[0] != "1" else "2") + value[1:]  # a signature may begin with anything
    collateral[name] = value.replace("UpToDate", "SWHardeningNeeded") if "UpToDate" in value else altered
    assert failed(verify(None, json.dumps(collateral).encode())) == ["collateral"]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"tcb_info": 1}'])
def test_malformed_collateral_is_named(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid, match="collateral"):
        verify(None, data)


def test_oversized_collateral_is_refused() -> None:
    with pytest.raises(EvidenceInvalid, match="at most"):
        verify(None, COLLATERAL + b" " * 262144)


def test_certificates_are_judged_at_the_time_given() -> None:
    platform = MadePlatform(pck_ends=NOW - timedelta(days=1))
    assert "certificate dates" in failed(verify(None, None, platform=platform))
    assert failed(verify(None, None, platform=platform, at=NOW - timedelta(days=2))) == []


def test_a_certificate_that_is_no_pck_is_refused() -> None:
    platform = MadePlatform(pck_is_pck=False)
    assert "pck certificate" in failed(verify(None, None, platform=platform))


def test_a_quote_without_its_chain_takes_it_from_the_collateral_or_is_incomplete() -> None:
    quote = PLATFORM.quote(chain=bytes(404), cert_type=3)
    assert verify(quote).incomplete
    assert "certificate chain" in broken(verify(quote))
    assert "certificate chain" in broken(verify(quote, None))
    collateral = json.loads(COLLATERAL) | {"pck_certificate_chain": PLATFORM.chain.decode()}
    assert verify(quote, json.dumps(collateral).encode()).passed


def pem(*certificates: Any) -> bytes:
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def test_the_order_of_certificates_does_not_matter() -> None:
    leaf, authority, root = PLATFORM.pck_certificate, PLATFORM.authority_certificate, PLATFORM.root_certificate
    assert verify(PLATFORM.quote(chain=pem(root, leaf, authority)), None).incomplete
    assert failed(verify(PLATFORM.quote(chain=pem(root, leaf, authority)), None)) == []


def test_swapped_missing_and_strange_certificates_are_refused() -> None:
    other = MadePlatform()
    leaf, authority, root = PLATFORM.pck_certificate, PLATFORM.authority_certificate, PLATFORM.root_certificate
    chains = {
        "swapped authority": pem(leaf, other.authority_certificate, root),
        "swapped leaf": pem(other.pck_certificate, authority, root),
        "swapped root": pem(leaf, authority, other.root_certificate),
        "no root": pem(leaf, authority),
        "no authority": pem(leaf, root),
        "no leaf": pem(authority, root),
        "a stranger": pem(leaf, authority, root, other.authority_certificate),
        "two leaves": pem(leaf, other.pck_certificate, authority, root),
        "another root altogether": other.chain,
    }
    for what, chain in chains.items():
        assert "certificate chain" in failed(verify(PLATFORM.quote(chain=chain), None)), what


@pytest.mark.parametrize("junk", [b"", b"not a chain", b"# a remark\n"])
def test_other_text_in_the_chain_is_malformed(junk: bytes) -> None:
    chain = junk + PLATFORM.chain if junk.startswith(b"#") else junk
    if not chain:
        assert verify(PLATFORM.quote(chain=chain), None).incomplete
        return
    with pytest.raises(EvidenceInvalid, match="certificate chain"):
        verify(PLATFORM.quote(chain=chain), None)


def test_an_attestation_key_the_enclave_does_not_speak_for_is_refused() -> None:
    # A quote signed by a key of one's own, beside a genuine enclave's report for another key.
    theirs = replace(PLATFORM, attestation=p256())
    quote, own = PLATFORM.quote(), theirs.quote(chain=PLATFORM.chain)
    forged = own[: 636 + 128] + quote[636 + 128 :]
    assert failed(verify(forged, None)) == ["attestation key"]


def test_a_qe_report_signed_by_another_platform_is_refused() -> None:
    other = MadePlatform()
    assert "qe report signature" in failed(verify(other.quote(chain=PLATFORM.chain), None))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.release)])
def test_every_measured_field_is_covered_by_the_signature(every: int) -> None:
    """Fields are longer than three bytes; a release tries every byte."""
    quote = PLATFORM.quote(5, 3)
    for at in range(8, 48 + 6 + 648, every):
        if 48 <= at < 54:
            continue
        altered = bytearray(quote)
        altered[at] ^= 1 << at % 8
        assert "quote signature" in failed(verify(bytes(altered), None)), at


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.release)])
def test_every_bit_of_the_signature_data_matters(every: int) -> None:
    quote = PLATFORM.quote()
    for at in range(632, len(quote), every):
        altered = bytearray(quote)
        altered[at] ^= 1 << at % 8
        try:
            verdict = verify(bytes(altered), None)
        except EvidenceInvalid:
            continue
        assert broken(verdict) != ["collateral", "tcb status"], at


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ({"attributes": SEPT_VE_DISABLE | 1}, "debug"),
        ({"attributes": SEPT_VE_DISABLE | 1 << 4}, "debug"),
        ({"attributes": SEPT_VE_DISABLE | 1 << 29}, "migration"),
        ({"mrsignerseam": b"\1" * 48}, "tdx module"),
    ],
)
def test_what_a_trusted_td_must_not_have(made: dict[str, Any], name: str) -> None:
    assert failed(verify(PLATFORM.quote(**made), None)) == [name]
    assert name in failed(verify(PLATFORM.quote(**made)))


def test_a_td_without_sept_ve_disable_passes_only_where_the_policy_says_so() -> None:
    quote = PLATFORM.quote(attributes=0)
    assert failed(verify(quote, None, require_sept_ve_disable=True)) == ["sept ve disable"]
    assert verify(quote, None).incomplete
    assert failed(verify(quote)) == ["collateral"]
    relaxed = verify(quote, allow_sept_ve=True)
    assert relaxed.passed, relaxed.broken
    assert (relaxed.claims["tcb_status"], relaxed.claims["tcb_evaluation"]) == ("UpToDate", 18)
    shown = next(check for check in relaxed.checks if check.name == "sept ve disable")
    assert shown.outcome is Outcome.SKIP and shown.allowed_by == "allow_sept_ve"
    assert TdxPolicy(allow_sept_ve=True).relaxations() == ("allow_sept_ve",)
    assert TdxPolicy(allow_sept_ve=True, require_sept_ve_disable=True).relaxations() == ()
    assert not verify(quote, allow_sept_ve=True, require_sept_ve_disable=True).passed
    assert verify(allow_sept_ve=True, require_sept_ve_disable=True).passed


@pytest.mark.parametrize("bit", [0, 4, 16, 27, 29, 32, 62, 63])
def test_that_relaxation_opens_no_other_attribute(bit: int) -> None:
    assert not verify(PLATFORM.quote(attributes=1 << bit), allow_sept_ve=True).passed


def test_that_relaxation_leaves_every_other_check_of_the_collateral() -> None:
    """dcap-qvl must look at SEPT_VE_DISABLE last: anything else that is wrong is what it says."""
    quote = PLATFORM.quote(attributes=0)

    def refused(collateral: bytes, **more: Any) -> list[str]:
        return failed(verify(quote, collateral, allow_sept_ve=True, **more))

    assert refused(PLATFORM.collateral(revoked=True)) == ["collateral"]
    assert refused(PLATFORM.collateral(floor=9)) == ["tcb status"]
    assert refused(PLATFORM.collateral("Revoked")) == ["collateral"]
    assert refused(MadePlatform().collateral()) == ["collateral"]
    assert refused(COLLATERAL, at=NOW + timedelta(days=26)) == ["collateral"]
    for name in ("tcb_info", "qe_identity"):
        altered = json.loads(COLLATERAL)
        altered[name] = altered[name].replace("UpToDate", "SWHardeningNeeded")
        assert refused(json.dumps(altered).encode()) == ["collateral"]
    forged = bytearray(quote)
    forged[600] ^= 1
    assert "quote signature" in failed(verify(bytes(forged), allow_sept_ve=True))


@pytest.mark.parametrize("status", ["UpToDate", "SWHardeningNeeded", "ConfigurationNeeded", "OutOfDate"])
def test_our_reading_of_the_levels_is_dcap_qvls(status: str) -> None:
    collateral = PLATFORM.collateral(status, ("INTEL-SA-00615",))
    usual = verify(None, collateral, accepted_statuses=(status,))
    ours = verify(PLATFORM.quote(attributes=0), collateral, accepted_statuses=(status,), allow_sept_ve=True)
    assert usual.passed and ours.passed
    for claim in ("tcb_status", "advisories", "tcb_evaluation"):
        assert usual.claims[claim] == ours.claims[claim]
    if status != "UpToDate":
        assert failed(verify(PLATFORM.quote(attributes=0), collateral, allow_sept_ve=True)) == ["tcb status"]


def test_a_service_td_is_refused() -> None:
    assert "service td" in failed(verify(PLATFORM.quote(5, 3, mrservicetd=b"\1" * 48), None))


def test_a_quoting_enclave_that_is_not_intels_is_refused() -> None:
    assert failed(verify(PLATFORM.quote(vendor=bytes(16)), None)) == ["qe vendor"]


def test_two_readings_of_one_quote_must_agree() -> None:
    report = read_quote(PLATFORM.quote()).report
    seconds, root = int(NOW.timestamp()), PLATFORM.root_certificate.public_bytes(Encoding.DER)
    standing = judge(PLATFORM.quote(), read_collateral(COLLATERAL), root, seconds)
    assert standing.agrees_with(report)
    registers = [{f"rtmr{index}": bytes(48)} for index in range(4)]
    for other in ({"mrtd": bytes(48)}, {"td_attributes": 0}, {"report_data": b"\1" * 64}, *registers):
        assert not standing.agrees_with(replace(report, **other)), other


def test_report_data_is_compared_whole() -> None:
    quote = PLATFORM.quote(report_data=b"\7" * 64)
    assert verify(quote, report_data=b"\7" * 64).passed
    assert broken(verify(quote, report_data=b"\7" * 63 + b"\6")) == ["report data"]
    assert broken(verify(quote, report_data=b"\7" * 63)) == ["report data"]
    skipped = next(check for check in verify(quote).checks if check.name == "report data")
    assert skipped.outcome is Outcome.SKIP and not skipped.required


@pytest.mark.parametrize("register", ["mrtd", "rtmr0", "rtmr1", "rtmr2"])
def test_the_registers_of_a_launch_are_needed_and_compared(register: str) -> None:
    assert verify(launches=(Launch(**REGISTERS | {register: REGISTERS[register].upper()}),)).passed
    assert broken(verify(launches=(Launch(**REGISTERS | {register: "ff" * 48}),))) == ["launch"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"launches": [{name: REGISTERS[name] for name in REGISTERS if name != register}]}, TdxPolicy)


@pytest.mark.parametrize(
    ("register", "value"),
    [("rtmr3", "33"), ("mrseam", "22"), ("mrconfigid", "00"), ("mrowner", "00"), ("mrownerconfig", "00")],
)
def test_other_registers_are_compared_where_a_launch_names_them(register: str, value: str) -> None:
    assert verify(launches=(Launch(**REGISTERS, **{register: value * 48}),)).passed
    assert broken(verify(launches=(Launch(**REGISTERS, **{register: "ff" * 48}),))) == ["launch"]


def test_one_launchs_firmware_does_not_go_with_anothers_settings() -> None:
    """Two platforms that are accepted, and a quote with the MRTD of one and the RTMR0 of the other."""
    other = Launch(mrtd="aa" * 48, rtmr0="bb" * 48, rtmr1="31" * 48, rtmr2="32" * 48)
    assert verify(launches=(other, LAUNCH)).passed
    mixed = (msgspec.structs.replace(LAUNCH, rtmr0="bb" * 48), msgspec.structs.replace(other, rtmr0="30" * 48))
    verdict = verify(launches=mixed)
    assert broken(verdict) == ["launch"] and "rtmr0" in verdict.broken[0].reason


def test_settings_that_cannot_be_foretold_are_let_go_by_name() -> None:
    verdict = verify(launches=(Launch(**REGISTERS | {"rtmr0": "any"}),))
    assert verdict.passed
    assert [(check.name, check.allowed_by) for check in verdict.checks if check.allowed_by] == [
        ("rtmr0", "launches rtmr0 any")
    ]
    assert TdxPolicy(launches=(Launch(**REGISTERS | {"rtmr0": "any"}),)).relaxations() == ("launches rtmr0 any",)
    for wrong in ({"mrtd": "any"}, {"mrtd": ""}, {"rtmr0": ""}, {"mrowner": ""}, {"rtmr1": "31" * 47}):
        with pytest.raises(ValueError):
            Launch(**REGISTERS | wrong)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(REGISTERS | wrong, Launch)


def test_a_td_nobody_named_is_not_accepted() -> None:
    verdict = verify(launches=())
    assert verdict.incomplete and broken(verdict) == ["launch"]


@pytest.mark.parametrize(
    ("pin", "value", "name"),
    [
        ("td_attributes", "0000000010000000", "td attributes"),
        ("xfam", "00000000000602e7", "xfam"),
        ("fmspcs", "90C06F000000", "fmspc"),
    ],
)
def test_attributes_xfam_and_model_can_be_pinned(pin: str, value: str, name: str) -> None:
    assert verify(**{pin: ("f" * len(value), value)}).passed
    assert broken(verify(**{pin: ("f" * len(value),)})) == [name]
    assert broken(verify(**{pin: ()})) == [name]


def test_the_model_is_known_from_a_trusted_certificate_only() -> None:
    assert verify().claims["fmspc"] == "90c06f000000"
    verdict = verify_tdx(
        PLATFORM.quote(), COLLATERAL, at=NOW, policy=TdxPolicy(fmspcs=("90c06f000000",)), report_data=None
    )
    assert "fmspc" in broken(verdict) and verdict.claims["fmspc"] == ""


def test_the_floor_of_the_tee_tcb_svn_holds_for_each_component() -> None:
    assert verify(min_tee_tcb_svn="060103" + "00" * 13).passed
    assert broken(verify(min_tee_tcb_svn="000004" + "00" * 13)) == ["tee tcb svn"]


@pytest.mark.parametrize(
    "policy",
    [{"fmspcs": ["ff"]}, {"xfam": ["zz" * 8]}, {"td_attributes": ["0x1"]}, {"min_tee_tcb_svn": "1"}, {"mrtd": []}],
)
def test_a_mistyped_policy_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(policy, TdxPolicy)
    if "mrtd" not in policy:
        with pytest.raises(ValueError):
            TdxPolicy(**policy)
