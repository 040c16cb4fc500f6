from __future__ import annotations

import base64
import gzip
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.envelope import MAX_INSIDE_BYTES, open_envelope
from cloister.errors import EvidenceInvalid

REPORT = bytes(range(256)) * 4 + bytes(160)
B64, HEX = base64.b64encode(REPORT).decode(), REPORT.hex()
PACKED = base64.b64encode(gzip.compress(REPORT)).decode()
TINFOIL = "https://tinfoil.sh/predicate/"


@pytest.mark.parametrize(
    ("fields", "maker", "kind", "certificates", "beside"),
    [
        ({"quote": HEX, "event_log": "[]", "vm_config": "{}"}, "dstack", "tdx", (), ("vm_config",)),
        ({"quote": "0x" + HEX, "event_log": "[]"}, "dstack", "tdx", (), ()),
        ({"quote": {"quote": HEX, "vm_config": "{}"}, "app_compose": "{}"}, "dstack", "tdx", (), ("vm_config",)),
        ({"intel_quote": B64, "quote": B64, "nvidia_payload": "{}"}, "dstack", "tdx", (), ("nvidia_payload",)),
        ({"cc_eventlog": None, "quote": B64}, "CoCo", "tdx", (), ()),
        (
            {"tdCcel": {"tdQuote": B64, "ccelData": "AA=="}, "challenge": "c"},
            "GCP",
            "tdx",
            (),
            ("challenge",),
        ),
        ({"sevSnpAttestation": {"report": B64, "auxBlob": "//79"}}, "GCP", "snp", (b"\xff\xfe\xfd",), ()),
        ({"format": TINFOIL + "sev-snp-guest/v1", "body": B64}, "Tinfoil", "snp", (), ()),
        ({"format": TINFOIL + "sev-snp-guest/v2", "body": PACKED}, "Tinfoil", "snp", (), ()),
        ({"format": TINFOIL + "tdx-guest/v2", "body": PACKED}, "Tinfoil", "tdx", (), ()),
        (
            {
                "domain": "d",
                "enclaveAttestationReport": {"format": TINFOIL + "sev-snp-guest/v2", "body": PACKED},
                "vcek": "//79",
            },
            *("Tinfoil", "snp", (b"\xff\xfe\xfd",), ("domain",)),
        ),
        ({"attestation_doc": B64}, "Nitro", "nitro", (), ()),
    ],
)
def test_known_envelopes_are_opened(
    fields: Any, maker: str, kind: str, certificates: tuple[bytes, ...], beside: tuple[str, ...]
) -> None:
    found = open_envelope(b"\n" + json.dumps(fields, indent=2).encode())
    assert found is not None and found.report == REPORT
    assert (found.maker, found.kind, found.certificates, found.beside) == (maker, kind, certificates, beside)


@pytest.mark.parametrize(
    ("fields", "log"),
    [
        ({"quote": HEX, "event_log": ' [{"imr": 3}]'}, b' [{"imr": 3}]'),
        ({"quote": HEX, "event_log": [{"imr": 3}]}, b'[{"imr": 3}]'),
        ({"quote": {"quote": HEX, "event_log": "[]"}, "event_log": "[1]"}, b"[]"),
        ({"intel_quote": B64, "event_log": "[]"}, b"[]"),
        ({"quote": B64, "cc_eventlog": "//79"}, b"\xff\xfe\xfd"),
        ({"tdCcel": {"tdQuote": B64, "ccelData": "//79"}}, b"\xff\xfe\xfd"),
        ({"quote": HEX}, None),
        ({"quote": HEX, "event_log": ""}, None),
        ({"quote": B64, "cc_eventlog": None}, None),
    ],
)
def test_a_quotes_event_log_is_handed_on(fields: Any, log: bytes | None) -> None:
    found = open_envelope(json.dumps(fields).encode())
    assert found is not None and found.event_log == log and found.beside == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "nothing"),
        ({"hello": 1}, "'hello'"),
        ({"attestation_report": {"version": 2}, "cert_chain": []}, "taken the SEV-SNP report apart"),
        ({"report": {"version": 2}, "certificateChain": {}}, "taken the SEV-SNP report apart"),
        ({"format": "https://tinfoil.sh/predicate/snp-tdx-multiplatform/v1", "body": B64}, "format"),
        ({"format": 1, "body": B64}, "format"),
        ({"format": TINFOIL + "tdx-guest/v2"}, "body"),
        (
            {"format": TINFOIL + "tdx-guest/v2", "body": base64.b64encode(gzip.compress(REPORT)[:-3]).decode()},
            "cut off",
        ),
        (
            {"format": TINFOIL + "tdx-guest/v2", "body": base64.b64encode(gzip.compress(bytes(10**7))).decode()},
            "too large",
        ),
        ({"quote": ""}, "quote"),
        ({"quote": 3}, "quote"),
        ({"quote": "not packed!"}, "neither hex nor base64"),
        ({"quote": {"event_log": ""}}, "quote"),
        ({"quote": {"quote": {"quote": HEX}}}, "quote"),
        ({"tdCcel": []}, "tdCcel"),
        ({"quote": HEX, "event_log": {"imr": 3}}, "event_log"),
        ({"quote": B64, "cc_eventlog": "not packed!"}, "cc_eventlog"),
        ({"hcl_report": B64, "tpm_quote": {}}, "Azure"),
        ({"sevSnpAttestation": {}}, "report"),
    ],
)
def test_what_cannot_be_used_is_named(fields: Any, says: str) -> None:
    with pytest.raises(EvidenceInvalid) as wrong:
        open_envelope(json.dumps(fields).encode())
    assert says in wrong.value.message


def test_a_services_token_is_not_evidence() -> None:
    with pytest.raises(EvidenceInvalid, match="token"):
        open_envelope(b"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2ln\n")


def test_what_is_not_json_is_left_alone_and_what_is_cut_off_is_not() -> None:
    for data in (REPORT, HEX.encode(), B64.encode(), b"", b"[1]"):
        assert open_envelope(data) is None
    for data in (b"{", b'{"quote": "', b"{" * 100_000, b"{\xff}"):
        with pytest.raises(EvidenceInvalid, match="envelope"):
            open_envelope(data)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["quote", "format", "body", "tdCcel", "sevSnpAttestation", "vcek", "intel_quote", "x"])
        | st.text(max_size=5),
        st.recursive(
            st.none() | st.text(max_size=8) | st.integers() | st.sampled_from([HEX, PACKED, TINFOIL + "tdx-guest/v2"]),
            lambda inside: st.dictionaries(st.sampled_from(["quote", "tdQuote", "report"]), inside, max_size=2),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_any_object_is_opened_or_refused(fields: dict[str, Any]) -> None:
    with suppress(EvidenceInvalid):
        found = open_envelope(json.dumps(fields).encode())
        assert found is not None and len(found.report) <= MAX_INSIDE_BYTES
