"""Real TDX quotes and Intel's real collateral for them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloister.attest.tdx import Launch, TdxPolicy, verify_tdx
from cloister.attest.tdx.verify import read_standing
from cloister.checks import Outcome
from cloister.errors import EvidenceInvalid

IN_TIME = datetime(2025, 6, 25, tzinfo=UTC)
# What the current quote's TD was started from: nothing else about it has to be let go.
LAUNCH = Launch(
    mrtd="91eb2b44d141d4ece09f0c75c2c53d247a3c68edd7fafe8a3520c942a604a407de03ae6dc5f87f27428b2538873118b7",
    rtmr0="44c0197b39157fdd7a4dcc44767f9d6b0bb3977c7a8e347b8492f827fe9d9e5c48aca29b220b80b6a540cf994b9bc9c0",
    rtmr1="0084452c01668329d4bc06acdf58a7205c26743304509973949e5619bf81a6a7aea8c323c173019b3093d54e579e9378",
    rtmr2="d833feef2cd945148aa38ead2c53e9b7f138190aaaebfc551dccd829fc207aa3ba80b70870d7330733642e01d48c3132",
)
POLICY = TdxPolicy(launches=(LAUNCH,))


@pytest.fixture(scope="module")
def vectors(shared: Path) -> Path:
    return shared / "vectors" / "tdx"


@pytest.fixture(scope="module")
def current(vectors: Path) -> tuple[bytes, bytes]:
    name = "dcap-qvl_tdx_quote"
    return (vectors / name).read_bytes(), (vectors / f"{name}_collateral.json").read_bytes()


def refused(quote: bytes, collateral: bytes | None) -> bool:
    try:
        return not verify_tdx(quote, collateral, at=IN_TIME, policy=POLICY, report_data=None).passed
    except EvidenceInvalid:
        return True


def test_a_production_quote_without_collateral_is_signed_but_incomplete(vectors: Path) -> None:
    quote = (vectors / "go-tdx-guest_tdx_prod_quote_SPR_E4.dat").read_bytes()
    verdict = verify_tdx(quote, None, at=datetime(2024, 1, 1, tzinfo=UTC), policy=TdxPolicy(), report_data=None)
    assert verdict.incomplete
    assert [check.name for check in verdict.broken] == ["collateral", "tcb status", "launch"]
    outcomes = {check.name: check.outcome for check in verdict.checks}
    for name in ("quote signature", "attestation key", "qe report signature", "certificate chain", "certificate dates"):
        assert outcomes[name] is Outcome.PASS


def test_a_quote_is_up_to_date_within_its_collaterals_time(current: tuple[bytes, bytes]) -> None:
    quote, collateral = current
    data = bytes.fromhex(
        "9a9d48e7f6799642d3d1b34e1e5e1742d4bb02dd6ddd551862c1211d35c304f9"
        "eca3efdbb481601c163cf52493d6e44aed55d51ec39b7e518fadb92c2b523f20"
    )
    policy = TdxPolicy(
        launches=(LAUNCH,),
        require_sept_ve_disable=True,
        td_attributes=("0000000010000000",),
        xfam=("00000000000602e7",),
        fmspcs=("B0C06F000000",),
    )
    verdict = verify_tdx(quote, collateral, at=IN_TIME, policy=policy, report_data=data)
    assert verdict.passed, verdict.broken
    assert verdict.claims["tcb_status"] == "UpToDate"
    assert verdict.claims["mrtd"].startswith("91eb2b44d141d4ec")
    assert not any(check.allowed_by for check in verdict.checks)
    unnamed = verify_tdx(quote, collateral, at=IN_TIME, policy=TdxPolicy(), report_data=data)
    assert unnamed.incomplete and [check.name for check in unnamed.broken] == ["launch"]
    for at in (datetime(2025, 6, 1, tzinfo=UTC), datetime(2025, 8, 1, tzinfo=UTC)):
        late = verify_tdx(quote, collateral, at=at, policy=policy, report_data=data)
        assert "collateral" in [check.name for check in late.broken]


def test_our_reading_of_the_tcb_levels_is_dcap_qvls(vectors: Path, current: tuple[bytes, bytes]) -> None:
    quote, collateral = current
    ours = read_standing(quote, collateral)
    claims = verify_tdx(quote, collateral, at=IN_TIME, policy=TdxPolicy(), report_data=None).claims
    assert ours and (ours.status, list(ours.advisories)) == (claims["tcb_status"], claims["advisories"])
    assert ours.evaluation == claims["tcb_evaluation"]
    name = vectors / "dcap-qvl_tdx_quote_outdated"
    assert read_standing(name.read_bytes(), Path(f"{name}_collateral.json").read_bytes()) is None


def test_the_outdated_quote_fails_and_collateral_of_another_platform_does_not_help(
    vectors: Path, current: tuple[bytes, bytes]
) -> None:
    name = "dcap-qvl_tdx_quote_outdated"
    quote, collateral = (vectors / name).read_bytes(), (vectors / f"{name}_collateral.json").read_bytes()
    at = datetime(2026, 2, 25, tzinfo=UTC)
    verdict = verify_tdx(quote, collateral, at=at, policy=TdxPolicy(), report_data=None)
    # Its platform lies below even the levels Intel calls OutOfDate.
    assert [check.name for check in verdict.checks if check.outcome is Outcome.FAIL] == ["tcb status"]
    assert verdict.claims["quote_version"] == 5 and verdict.claims["td_version"] == "1.5"
    assert refused(quote, current[1])


@pytest.mark.parametrize(("every", "sampled"), [(4, 120), pytest.param(1, 1500, marks=pytest.mark.release)])
def test_every_sampled_bit_of_the_quote_matters(current: tuple[bytes, bytes], every: int, sampled: int) -> None:
    quote, collateral = current
    whole = 636 + 4300
    chance = random.Random(4)
    places = {at * 8 + at % 8 for at in range(0, 636 + 128, every)} | set(chance.sample(range(whole * 8), sampled))
    for place in places:
        altered = bytearray(quote)
        altered[place // 8] ^= 1 << place % 8
        assert refused(bytes(altered), collateral), f"bit {place % 8} of byte {place // 8}"


@pytest.mark.parametrize("sampled", [60, pytest.param(600, marks=pytest.mark.release)])
@pytest.mark.parametrize(
    "name", ["tcb_info", "tcb_info_signature", "qe_identity", "qe_identity_signature", "pck_crl", "root_ca_crl"]
)
def test_sampled_changes_of_the_collateral_are_refused(current: tuple[bytes, bytes], name: str, sampled: int) -> None:
    quote, collateral = current
    fields = json.loads(collateral)
    is_hex = name.endswith(("signature", "crl"))
    value = bytes.fromhex(fields[name]) if is_hex else fields[name].encode()
    chance = random.Random(name)
    places = range(len(value) * 7)
    for place in chance.sample(places, min(sampled, len(places))):
        altered = bytearray(value)
        altered[place // 7] ^= 1 << place % 7
        text = altered.hex() if is_hex else altered.decode()
        assert refused(quote, json.dumps(fields | {name: text}).encode()), (name, place)


def test_every_missing_part_of_the_collateral_is_malformed(current: tuple[bytes, bytes]) -> None:
    quote, collateral = current
    fields = json.loads(collateral)
    for name in fields:
        kept = {other: value for other, value in fields.items() if other != name}
        with pytest.raises(EvidenceInvalid, match="collateral"):
            verify_tdx(quote, json.dumps(kept).encode(), at=IN_TIME, policy=TdxPolicy(), report_data=None)
