"""in-toto statements: provenance that names the release once counts, and nothing else a signer says of a digest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.checks import Examination, Verdict
from cloister.transparency.sigstore_bundle import PAYLOAD_TYPE, examine_statement

SIGNED = bytes(range(32))
OTHER = {"name": "other", "digest": {"sha256": "00" * 32}}
OURS = {"name": "release.json", "digest": {"sha256": SIGNED.hex()}}
V1 = "https://slsa.dev/provenance/v1"
V02 = "https://slsa.dev/provenance/v0.2"


def statement(**changes: Any) -> dict[str, Any]:
    good = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [OTHER, OURS],
        "predicateType": V1,
        "predicate": {"buildDefinition": {}, "runDetails": {}, "anything": "else"},
    }
    return {**good, **changes}


def examined(said: Any, kind: str = PAYLOAD_TYPE, **more: Any) -> Verdict:
    found = Examination("sigstore ")
    payload = said if isinstance(said, bytes) else json.dumps(said).encode()
    examine_statement(found, kind, payload, SIGNED, **more)
    return found.verdict()


def broken(said: Any, kind: str = PAYLOAD_TYPE, **more: Any) -> dict[str, str]:
    return {one.name: one.reason for one in examined(said, kind, **more).broken}


def test_provenance_of_the_release_counts() -> None:
    assert examined(statement()).passed
    older = {"_type": "https://in-toto.io/Statement/v0.1", "predicateType": V02}
    assert examined(statement(**older, predicate={"builder": {"id": "x"}, "buildType": "y"})).passed
    described = {**OURS, "uri": "https://example.com/r", "mediaType": "application/json", "annotations": {"a": 1}}
    assert examined(statement(subject=[described])).passed


@pytest.mark.parametrize(
    "kind",
    [
        "https://cosign.sigstore.dev/attestation/vuln/v1",
        "https://in-toto.io/attestation/vulns/v0.1",
        "https://in-toto.io/attestation/test-result/v0.1",
        "https://spdx.dev/Document",
        "https://cyclonedx.org/bom",
        "https://slsa.dev/verification_summary/v1",
        "https://slsa.dev/provenance/v0.1",
        "https://slsa.dev/provenance/v1 ",
        "",
    ],
)
def test_what_else_a_signer_says_of_the_digest_is_no_release(kind: str) -> None:
    refused = broken(statement(predicateType=kind))
    assert refused.keys() == {"sigstore predicate"} and "does not say that this is a release" in refused.popitem()[1]


def test_a_policy_narrows_the_predicates() -> None:
    assert examined(statement(), accepted=(V1,)).passed
    assert broken(statement(), accepted=(V02,)).keys() == {"sigstore predicate"}
    assert broken(statement(predicateType="urn:mine"), accepted=("urn:mine",)).keys() == {"sigstore predicate"}


@pytest.mark.parametrize("predicate", [{}, {"buildDefinition": {}}, {"builder": {}, "buildType": ""}])
def test_a_predicate_without_its_fields_is_none(predicate: dict[str, Any]) -> None:
    assert broken(statement(predicate=predicate)).keys() == {"sigstore predicate"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (statement(validUntil="2027-01-01"), "unknown field"),
        (statement(_type="https://in-toto.io/Statement/v2"), "type"),
        (statement(_type="https://example.com/Statement"), "type"),
        (statement(subject={}), "form"),
        (statement(predicate=[]), "form"),
        ({key: value for key, value in statement().items() if key != "subject"}, "form"),
        ([], "form"),
        (b"nonsense", "decode"),
        (b"\xff", "decode"),
        (b"[" * 20_000, "form"),
        (b'{"predicate": {"a": ' + b"[" * 20_000, "decode"),
    ],
)
def test_a_statement_of_another_form_is_none(said: Any, reason: str) -> None:
    refused = broken(said)
    assert refused.keys() == {"sigstore statement"} and reason in refused["sigstore statement"]


def test_another_payload_is_no_statement() -> None:
    assert broken(statement(), "text/plain").keys() == {"sigstore statement"}


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ([], "not among the subjects"),
        ([OTHER], "not among the subjects"),
        ([{"name": "r", "digest": {"sha1": "00" * 20}}], "no SHA-256"),
        ([{"name": "r", "digest": {"sha512": SIGNED.hex()}}], "no SHA-256"),
        ([{"name": "r", "digest": {}}], "no SHA-256"),
        ([OURS, {"name": "other", "digest": {"sha512": "00" * 64}}], "no SHA-256"),
        ([{"name": "r", "digest": {"sha256": SIGNED.hex().upper()}}], "small hexadecimal"),
        ([{"name": "r", "digest": {"sha256": SIGNED.hex() + "\n"}}], "small hexadecimal"),
        ([OURS, {**OURS, "name": "again"}], "two subjects are the release"),
        ([OURS, {**OTHER, "name": OURS["name"]}], "one name"),
        ([{"digest": OURS["digest"]}], "form"),
        ([{**OURS, "name": ""}], "form"),
        ([{**OURS, "except": "on Mondays"}], "form"),
        ([{**OURS, "digest": SIGNED.hex()}], "form"),
        (["release.json"], "form"),
    ],
)
def test_a_subject_is_the_release_once_and_in_form(subject: list[Any], reason: str) -> None:
    refused = broken(statement(subject=subject))
    assert refused.keys() == {"sigstore subject"} and reason in refused["sigstore subject"]


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    whole = json.dumps(statement()).encode()
    for payload in (data, whole[:at] + data + whole[at + len(data) :]):
        examined(payload)
