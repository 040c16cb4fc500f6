"""Reports and chains of our own making: what must pass passes, and each thing that may be wrong fails its own check."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.attest.snp import SnpPolicy, Tcb, verify_snp
from cloister.attest.snp.report import AMD_ROOTS, Product
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.attest import snp_maker as maker
from tests.attest.snp_maker import AT, CHIP, TCB, Chip, certificate, rsa_key, table

PRODUCTS: tuple[Product, ...] = ("Milan", "Genoa", "Turin")
MEASUREMENT = "aa" * 48


@pytest.fixture(scope="module")
def chip() -> Chip:
    return Chip()


def verify(
    chip: Chip,
    report: bytes | None = None,
    certificates: list[bytes] | None = None,
    *,
    at: datetime = AT,
    report_data: bytes | None = None,
    roots: dict[Product, str] | None = None,
    **policy: Any,
) -> Verdict:
    """By default, all that the default policy asks for; where a test gives certificates, they are what it is about."""
    if certificates is not None:
        policy = {"allow_missing_revocation_list": True} | policy
    return verify_snp(
        chip.report() if report is None else report,
        chip.pieces if certificates is None else certificates,
        at=at,
        policy=msgspec.convert({"measurements": [MEASUREMENT]} | policy, SnpPolicy),
        report_data=report_data,
        roots=chip.roots if roots is None else roots,
    )


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


def relaxed(verdict: Verdict) -> dict[str, str]:
    """The checks that did not hold and were let go, with the relaxation that did."""
    assert verdict.passed, verdict.broken
    return {check.name: check.allowed_by for check in verdict.checks if check.allowed_by}


def outcome(verdict: Verdict, name: str) -> Outcome:
    (check,) = (check for check in verdict.checks if check.name == name)
    return check.outcome


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", ["vcek", "vlek"])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_good_report_passes(product: Product, kind: Any, version: int) -> None:
    chip = Chip(product, kind, tcb=TCB | ({"fmc": 3} if product == "Turin" else {}))
    verdict = verify(chip, chip.report(version), report_data=bytes(range(64)), measurements=[MEASUREMENT])
    assert verdict.passed, verdict.broken
    assert verdict.claims["product"] == product and verdict.claims["version"] == version
    assert verdict.claims["measurement"] == MEASUREMENT


def test_certificates_come_in_any_shape_and_order(chip: Chip) -> None:
    leaf, ask, ark = chip.certificates
    pem = [x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in (ark, ask, leaf)]
    for shape in (
        [ark, leaf, ask],
        [b"".join(pem).replace(b"\n", b"\r\n")],
        [ask + leaf + ark],
        [pem[2], ark, ask, leaf],
        [table({maker.VCEK: leaf, maker.ASK: ask, maker.ARK: ark})],
        [table({maker.VCEK: leaf, maker.ASK: pem[1], maker.ARK: ark}, little=True)],
        [table({maker.VCEK: leaf}), pem[0] + pem[1], b""],
    ):
        assert verify(chip, certificates=shape).passed


def test_strangers_among_the_certificates_do_not_matter(chip: Chip) -> None:
    others = [Chip("Genoa").leaf(), Chip("Milan").leaf(), Chip("Milan", "vlek").leaf(), Chip("Genoa").ark]
    assert verify(chip, certificates=others + chip.certificates).passed


@pytest.mark.parametrize(
    ("missing", "checks"),
    [
        (
            0,
            {"root key", "certificate chain", "report signature", "certificate TCB", "chip id", "certificate validity"},
        ),
        (1, {"root key", "certificate chain"}),
        (2, {"root key", "certificate chain"}),
    ],
)
def test_a_missing_certificate_leaves_the_verdict_incomplete(chip: Chip, missing: int, checks: set[str]) -> None:
    given = [der for place, der in enumerate(chip.certificates) if place != missing]
    verdict = verify(chip, certificates=given)
    assert verdict.incomplete and set(broken(verdict)) == checks


def test_no_certificates_at_all_is_incomplete_also_for_version_2(chip: Chip) -> None:
    verdict = verify(chip, chip.report(2), [], minimum_tcb={"snp": 1})
    assert verdict.incomplete and {"product", "report signature", "root key", "tcb floor"} <= set(broken(verdict))


def test_the_root_is_pinned_by_its_key(chip: Chip) -> None:
    assert broken(verify(chip, roots=dict(AMD_ROOTS))) == ["root key"]
    assert broken(verify(chip, roots={})) == ["root key"]
    assert broken(verify(chip, roots={"Genoa": chip.roots["Milan"]})) == ["root key"]


def test_the_whole_chain_under_another_root_of_the_same_name_fails(chip: Chip) -> None:
    ark = certificate(chip.ark_name, rsa_key("other"), chip.ark_name, rsa_key("other"))
    ask = certificate(chip.ask_name, rsa_key("ask"), chip.ark_name, rsa_key("other"))
    assert broken(verify(chip, certificates=[chip.leaf(), ask, ark])) == ["root key"]
    # The true root beside it does not help: it did not sign this ASK.
    assert broken(verify(chip, certificates=[chip.leaf(), ask, ark, chip.ark])) == ["certificate chain"]


@pytest.mark.parametrize(
    "forged",
    [
        lambda chip: [chip.leaf(), certificate(chip.ask_name, rsa_key("x"), chip.ark_name, rsa_key("ark")), chip.ark],
        lambda chip: [chip.leaf(), certificate(chip.ask_name, rsa_key("ask"), chip.ark_name, rsa_key("x")), chip.ark],
        lambda chip: [
            chip.leaf(),
            certificate(chip.ask_name, rsa_key("ask"), chip.ark_name, rsa_key("ark"), ca=False),
            chip.ark,
        ],
        lambda chip: [chip.leaf(hash_with=SHA256()), chip.ask, chip.ark],
        lambda chip: [
            chip.leaf(),
            chip.ask,
            certificate(chip.ark_name, rsa_key("ark"), chip.ark_name, rsa_key("x")),
        ],
    ],
    ids=["another ASK", "ASK signed by another", "ASK that may not sign", "SHA-256", "ARK signed by another"],
)
def test_a_broken_link_fails_the_chain(chip: Chip, forged: Callable[[Chip], list[bytes]]) -> None:
    assert broken(verify(chip, certificates=forged(chip))) == ["certificate chain"]


def test_an_authority_for_the_other_kind_of_key_fails_the_chain() -> None:
    """ARK signs both ASK and ASVK; a VCEK under an ASVK is not AMD's doing."""
    chip = Chip()
    ask = certificate("SEV-VLEK-Milan", rsa_key("ask"), chip.ark_name, rsa_key("ark"))
    extensions = maker.leaf_extensions("Milan", "vcek", TCB)
    leaf = certificate("SEV-VCEK", chip.key, "SEV-VLEK-Milan", rsa_key("ask"), ca=False, extensions=extensions)
    assert broken(verify(chip, certificates=[leaf, ask, chip.ark])) == ["certificate chain"]


def test_a_swapped_leaf_fails_the_signature(chip: Chip) -> None:
    assert broken(verify(chip, certificates=Chip().certificates)) == ["report signature"]


def test_a_leaf_on_another_curve_fails_the_signature() -> None:
    chip = Chip(key=ec.generate_private_key(ec.SECP256R1()))
    assert broken(verify(chip)) == ["report signature"]


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("when", ["too early", "too late"])
def test_a_certificate_outside_its_time_fails(chip: Chip, which: int, when: str) -> None:
    narrow = {"since": AT + timedelta(days=1)} if when == "too early" else {"until": AT - timedelta(days=1)}
    made = [
        lambda: chip.leaf(**narrow),
        lambda: certificate(chip.ask_name, rsa_key("ask"), chip.ark_name, rsa_key("ark"), **narrow),
        lambda: certificate(chip.ark_name, rsa_key("ark"), chip.ark_name, rsa_key("ark"), **narrow),
    ]
    certificates = [made[which]() if place == which else der for place, der in enumerate(chip.certificates)]
    assert broken(verify(chip, certificates=certificates)) == ["certificate validity"]


def test_time_is_the_callers(chip: Chip) -> None:
    assert broken(verify(chip, at=AT + timedelta(days=400))) == ["certificate validity", "revocation"]


@pytest.mark.parametrize(
    ("fields", "policy", "check"),
    [
        ({"policy": 0xB0000}, {}, "debug"),
        ({"policy": 0x70000}, {}, "migration agent"),
        ({"policy": 0x10000}, {}, "guest policy"),
        ({"policy": 0x30000 | 1 << 40}, {}, "guest policy"),
        ({}, {"require_smt_off": True}, "smt"),
        ({"policy": 0x20000}, {"require_smt_off": True}, "smt"),
        ({}, {"require_single_socket": True}, "single socket"),
        ({}, {"require_ciphertext_hiding": True}, "ciphertext hiding"),
        ({}, {"require_alias_check": True}, "alias check"),
        ({"committed_firmware": bytes([28, 55, 1, 0])}, {"require_committed_firmware": True}, "committed firmware"),
        ({}, {"measurements": ["bb" * 48, "cc" * 48]}, "launch"),
        ({}, {"measurements": []}, "launch"),
        ({}, {"host_data": ["11" * 32]}, "host data"),
        ({}, {"family_ids": ["11" * 16]}, "family id"),
        ({}, {"image_ids": ["11" * 16]}, "image id"),
        ({}, {"id_key_digests": ["11" * 48]}, "id key"),
        ({}, {"author_key_digests": ["11" * 48]}, "author key"),
        ({}, {"chip_ids": ["11" * 64]}, "accepted chip"),
        ({}, {"minimum_guest_svn": 2}, "guest svn"),
        ({"vmpl": 1}, {}, "vmpl"),
        ({"vmpl": 2}, {"vmpl": [0, 1]}, "vmpl"),
        ({"vmpl": 0xFFFFFFFF}, {}, "vmpl"),
        ({}, {"products": ["Genoa", "Turin"]}, "product"),
        ({}, {"signing_keys": ["vlek"]}, "signing key"),
        ({}, {"minimum_tcb": {"microcode": 220}}, "tcb floor"),
        ({}, {"minimum_tcb": {"snp": 28}}, "tcb floor"),
        ({}, {"minimum_tcb": {"bootloader": 5}}, "tcb floor"),
        ({}, {"minimum_tcb": {"tee": 2}}, "tcb floor"),
        ({}, {"minimum_tcb_of": {"Milan": {"snp": 28}}}, "tcb floor"),
        ({"algorithm": 2}, {}, "report signature"),
        ({"chip_id": CHIP[::-1]}, {}, "chip id"),
        ({"chip_id": bytes(64)}, {}, "chip id"),
        ({"cpuid": bytes([0x19, 0x11, 1])}, {}, "product"),
        ({"cpuid": bytes([0x1B, 0x00, 0])}, {}, "product"),
        ({"reported_tcb": maker.pack_tcb("Milan", TCB | {"snp": 26})}, {}, "certificate TCB"),
        ({"reported_tcb": maker.pack_tcb("Milan", TCB | {"microcode": 255})}, {}, "certificate TCB"),
    ],
)
def test_each_demand_has_a_check_that_fails(chip: Chip, fields: Any, policy: Any, check: str) -> None:
    assert check in broken(verify(chip, chip.report(**fields), **policy))


def test_what_a_policy_allows_passes(chip: Chip) -> None:
    report = chip.report(policy=0x30000 | 7 << 18, platform_info=0b110001, chip_id=bytes(64), vmpl=1)
    verdict = verify(
        chip,
        report,
        allow_debug=True,
        allow_migration_agent=True,
        allow_hidden_chip_id=True,
        require_single_socket=True,
        require_ciphertext_hiding=True,
        require_alias_check=True,
        require_committed_firmware=True,
        measurements=["00" * 48, MEASUREMENT.upper()],
        host_data=["00" * 32],
        minimum_guest_svn=1,
        minimum_tcb=TCB,
        minimum_tcb_of={"Milan": {"snp": 27}, "Genoa": {"snp": 255}},
        vmpl=[1],
    )
    assert verdict.passed, verdict.broken
    assert relaxed(verdict) == {
        "debug": "allow_debug",
        "migration agent": "allow_migration_agent",
        "chip id": "allow_hidden_chip_id",
        "vmpl": "vmpl 1",
    }


def test_the_default_lets_nothing_go(chip: Chip) -> None:
    assert relaxed(verify(chip, allow_debug=True, allow_old_tcb=True, vmpl=[0, 3])) == {}
    assert SnpPolicy().relaxations() == ()
    policy = SnpPolicy(allow_debug=True, allow_old_tcb=True, vmpl=(0, 1, 2))
    assert policy.relaxations() == ("allow_debug", "allow_old_tcb", "vmpl 1", "vmpl 2")


@pytest.mark.parametrize("name", ["host_data", "family_ids", "image_ids", "id_key_digests", "chip_ids"])
def test_an_empty_list_accepts_nothing(chip: Chip, name: str) -> None:
    assert len(broken(verify(chip, **{name: []}))) == 1
    assert broken(verify(Chip("Genoa", "vlek"), csp_ids=[])) == ["provider"]


def test_a_guest_nobody_named_is_not_accepted(chip: Chip) -> None:
    verdict = verify(chip, measurements=[])
    assert verdict.incomplete and broken(verdict) == ["launch"]


@pytest.mark.parametrize(
    ("product", "cpuid", "change"),
    [
        ("Milan", None, {"snp": 23}),
        ("Milan", None, {"microcode": 218}),
        ("Genoa", None, {"snp": 26}),
        ("Genoa", None, {"microcode": 0x55}),
        ("Genoa", (0x19, 0x11, 2), {"microcode": 0x50}),
        ("Turin", None, {"snp": 3}),
        ("Turin", None, {"microcode": 0x50}),
    ],
)
def test_patch_levels_amd_calls_vulnerable_fail_unless_let_go(product: Product, cpuid: Any, change: Any) -> None:
    chip = Chip(product, tcb=TCB | change)
    report = chip.report(**({"cpuid": bytes(cpuid)} if cpuid else {}))
    assert broken(verify(chip, report)) == ["shipped tcb floor"]
    assert relaxed(verify(chip, report, allow_old_tcb=True)) == {"shipped tcb floor": "allow_old_tcb"}
    ((part, level),) = change.items()
    patched = Chip(product, tcb=TCB | {part: level + 1})
    assert verify(patched, patched.report(**({"cpuid": bytes(cpuid)} if cpuid else {}))).passed


def test_microcode_of_another_processor_is_not_held_against_a_number_it_never_had() -> None:
    dense = Chip("Turin", tcb=TCB | {"microcode": 0x20})
    assert verify(dense, dense.report(cpuid=bytes([0x1A, 0x11, 0]))).passed
    older = Chip("Milan", tcb=TCB | {"microcode": 0x44})
    assert verify(older, older.report(2)).passed


@pytest.mark.parametrize("product", PRODUCTS)
def test_no_policy_accepts_patch_levels_of_zero(product: Product) -> None:
    chip = Chip(product, tcb=dict.fromkeys(TCB, 0))
    assert broken(verify(chip, allow_old_tcb=True)) == ["tcb floor"]


def test_the_floor_knows_the_products_layout() -> None:
    """Turin packs its levels in another order; a reader of the old one would see a snp of 0."""
    chip = Chip("Turin", tcb=TCB | {"fmc": 2})
    assert verify(chip, minimum_tcb=TCB | {"fmc": 2}).passed
    assert broken(verify(chip, minimum_tcb={"fmc": 3})) == ["tcb floor"]
    assert broken(verify(chip, chip.report(2), minimum_tcb={"fmc": 3})) == ["tcb floor"]


def test_a_chips_number_is_compared_whole() -> None:
    turin = Chip("Turin")
    assert broken(verify(turin, turin.report(chip_id=CHIP))) == ["chip id"]
    assert verify(Chip(extensions={"4": b"\x04\x40" + CHIP})).passed
    for value in (CHIP[:63], CHIP[:8], b"", b"\x04\x3f" + CHIP):
        assert broken(verify(Chip(extensions={"4": value}))) == ["chip id"]


@pytest.mark.parametrize(
    ("number", "value", "check"),
    [
        ("2", maker.der_text("Rome"), "product"),
        ("2", b"", "product"),
        ("3.1", maker.der_integer(3), "certificate TCB"),
        ("3.2", b"", "certificate TCB"),
        ("3.3", b"\x02\x02\x00\x1b", "certificate TCB"),
        ("3.8", b"\x02\x01\xdb", "certificate TCB"),
    ],
)
def test_a_certificates_words_must_fit_the_report(number: str, value: bytes, check: str) -> None:
    for version in (2, 3):
        chip = Chip(extensions={number: value})
        assert check in broken(verify(chip, chip.report(version)))


def test_a_certificate_of_another_product_fails() -> None:
    chip = Chip(extensions={"2": maker.der_text("Genoa-B1")})
    assert {"product", "root key"} & set(broken(verify(chip, chip.report(3))))
    assert {"root key", "certificate chain"} <= set(broken(verify(chip, chip.report(2))))


def test_bergamo_and_siena_are_genoa() -> None:
    for word in ("Bergamo-A1", "Siena"):
        assert verify(Chip("Genoa", extensions={"2": maker.der_text(word)})).passed


def test_a_vlek_names_its_provider() -> None:
    chip = Chip("Genoa", "vlek")
    verdict = verify(chip, csp_ids=["CN=cloud.example"])
    assert verdict.passed and verdict.claims["csp_id"] == "CN=cloud.example"
    assert broken(verify(chip, csp_ids=["CN=other.example"])) == ["provider"]


@pytest.mark.parametrize("flags", [7 << 2, 2 << 2])
def test_a_report_signed_by_no_known_key_fails(chip: Chip, flags: int) -> None:
    assert "signing key" in broken(verify(chip, chip.report(flags=flags)))


def test_a_vcek_does_not_answer_for_a_vlek(chip: Chip) -> None:
    assert "report signature" in broken(verify(chip, chip.report(flags=4)))


def test_report_data_is_compared_when_asked(chip: Chip) -> None:
    assert outcome(verify(chip), "report data") is Outcome.SKIP
    assert verify(chip, report_data=bytes(range(64))).passed
    for other in (bytes(64), bytes(range(63)), b"", bytes(range(65))):
        assert broken(verify(chip, report_data=other)) == ["report data"]


def test_a_revocation_list_is_heeded(chip: Chip) -> None:
    def with_list(*revoked: int, **how: Any) -> Verdict:
        return verify(chip, certificates=[*chip.certificates, chip.revocation_list(*revoked, **how)])

    assert outcome(with_list(99), "revocation") is Outcome.PASS
    assert broken(with_list(2)) == ["revocation"]
    assert broken(with_list(1)) == ["revocation"]
    assert broken(with_list(signer="x")) == ["revocation"]
    assert broken(with_list(due=AT - timedelta(hours=1))) == ["revocation"]
    assert broken(with_list(made=AT + timedelta(hours=1))) == ["revocation"]
    of_another = [*chip.certificates, Chip("Genoa").revocation_list()]
    for given in (chip.certificates, of_another):
        missing = verify(chip, certificates=given, allow_missing_revocation_list=False)
        assert missing.incomplete and broken(missing) == ["revocation"]
        assert relaxed(verify(chip, certificates=given)) == {"revocation": "allow_missing_revocation_list"}


@pytest.mark.parametrize(("every", "of_signature"), [(3, 1), pytest.param(1, 8, marks=pytest.mark.release)])
def test_a_bit_of_every_byte_matters_and_every_bit_of_a_signature(chip: Chip, every: int, of_signature: int) -> None:
    """A release tries them all; otherwise those of every third byte."""
    report = chip.report(5)
    bits = [(place, place % 8) for place in range(0, 0x2A0, every)] + [
        (place, (place + more) % 8) for place in range(0x2A0, 0x330, every) for more in range(of_signature)
    ]
    for place, bit in bits:
        changed = bytearray(report)
        changed[place] ^= 1 << bit
        try:
            assert not verify(chip, bytes(changed)).passed, (place, bit)
        except EvidenceInvalid:
            assert place < 4  # a version that does not exist


def test_bytes_nobody_signs_must_be_zero(chip: Chip) -> None:
    report = bytearray(chip.report())
    for place in range(0x330, 1184):
        report[place] = 1
        with pytest.raises(EvidenceInvalid, match="after the report's signature"):
            verify(chip, bytes(report))
        report[place] = 0


@pytest.mark.parametrize("size", [0, 1, 4, 1183, 1185, 5000])
def test_a_report_of_another_size_is_refused(chip: Chip, size: int) -> None:
    with pytest.raises(EvidenceInvalid, match="1184 bytes"):
        verify(chip, chip.report().ljust(size, b"\0")[:size])


@pytest.mark.parametrize("version", [0, 1, 6, 1 << 31])
def test_a_version_not_known_is_refused(chip: Chip, version: int) -> None:
    with pytest.raises(EvidenceInvalid, match=f"version {version} "):
        verify(chip, chip.report(version))


@pytest.mark.parametrize(
    "piece",
    [
        b"hello",
        b"\x30\x82\x05",
        b"\x30\x82\x05\x4c" + bytes(100),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        b"\x30\x82\x00\x01\x00" * 50_000,
        b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
        maker.VCEK.bytes * 100,
        maker.VCEK.bytes + bytes([24, 0, 0, 0, 255, 255, 0, 0]) + bytes(24),
        table({maker.VCEK: b"not a certificate"}),
        bytes([7]) * (1 << 18) + b"more",
    ],
)
def test_certificates_that_are_none_are_refused(chip: Chip, piece: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        verify(chip, certificates=[piece])


def test_too_many_certificates_are_refused(chip: Chip) -> None:
    with pytest.raises(EvidenceInvalid, match="at most 32"):
        verify(chip, certificates=[chip.leaf(serial=serial + 1) for serial in range(33)])


def test_a_critical_extension_nobody_knows_is_refused(chip: Chip) -> None:
    with pytest.raises(EvidenceInvalid):
        verify(chip, certificates=[chip.leaf(critical=True), chip.ask, chip.ark])


def test_a_policy_refuses_what_it_does_not_know() -> None:
    for wrong in ({"measurement": ["aa" * 48]}, {"measurements": ["aa"]}, {"minimum_tcb": {"snp": 256}}, {"vmpl": [4]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, SnpPolicy)
    with pytest.raises(ValueError, match="measurements"):
        SnpPolicy(measurements=("aa",))
    assert SnpPolicy().minimum_tcb == Tcb()
