"""Keys of notes: published examples, both algorithms, and every bit of a key or signature."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.note import (
    Algorithm,
    Note,
    Signature,
    SigningKey,
    VerifierKey,
    new_key_file,
    read_key_file,
    read_note,
    signed_at,
)
from tests.transparency.node import NOON, flips

# The example of Go's note package, from which C2SP's signed notes come.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_SIGNING = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
NEUMANN_NOTE = """If you think cryptography is the answer to your problem,
then you don't know what your problem is.

— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=
"""
GO_SUM_DATABASE = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"


def test_the_published_example() -> None:
    key, note = VerifierKey.parse(NEUMANN), read_note(NEUMANN_NOTE)
    assert key.signed(note) and str(key) == NEUMANN
    signing = SigningKey.parse(NEUMANN_SIGNING)
    assert signing.verifier == key and signing.private_text() == NEUMANN_SIGNING
    assert signing.sign(note.text) == note.signatures[0]


def test_a_published_key_of_a_public_log() -> None:
    assert str(VerifierKey.parse(GO_SUM_DATABASE)) == GO_SUM_DATABASE


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_signature_verifies_under_its_own_key_text_and_name_only(algorithm: Algorithm) -> None:
    key, other = (SigningKey.generate("a.example", algorithm) for _ in range(2))
    line = key.sign("text\n", at=NOON)
    assert key.verifier.verifies("text\n", line)
    assert not other.verifier.verifies("text\n", line)
    assert not key.verifier.verifies("text\n\n", line)
    assert not key.verifier.verifies("text\n", Signature("b.example", line.key_id, line.value))


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_bit_of_a_signature_counts(algorithm: Algorithm) -> None:
    key = SigningKey.generate("a.example", algorithm)
    line = key.sign("text\n", at=NOON)
    assert not any(key.verifier.verifies("text\n", Signature(line.name, line.key_id, v)) for v in flips(line.value))
    assert not any(key.verifier.verifies("text\n", Signature(line.name, i, line.value)) for i in flips(line.key_id))
    for length in (0, 8, 64, 71, 73):
        cut = (line.value + bytes(80))[:length]
        if cut != line.value:
            assert not key.verifier.verifies("text\n", Signature(line.name, line.key_id, cut))


def test_a_cosignature_says_when_and_is_no_plain_signature() -> None:
    key = SigningKey.generate("w.example", Algorithm.COSIGNATURE)
    line = key.sign("text\n", at=NOON)
    assert signed_at(line) == int(NOON.timestamp())
    assert VerifierKey("w.example", Algorithm.ED25519, key.verifier.public).key_id != line.key_id
    with pytest.raises(ValueError):
        key.sign("text\n")
    with pytest.raises(ValueError):
        key.sign("text\n", at=datetime(2026, 3, 1))


def test_a_false_line_of_a_known_key_spoils_the_note() -> None:
    key = SigningKey.generate("a.example")
    good = key.sign("text\n")
    false = Signature(good.name, good.key_id, bytes(64))
    assert key.verifier.signed(Note("text\n", (good,)))
    assert not key.verifier.signed(Note("text\n", (good, false)))
    assert not key.verifier.signed(Note("text\n", ()))


def test_every_bit_of_a_written_key_counts() -> None:
    for wrong in flips(NEUMANN.encode()):
        try:
            key = VerifierKey.parse(wrong.decode())
        except (EvidenceInvalid, UnicodeDecodeError):
            continue
        pytest.fail(f"{wrong!r} was read as {key}")


@given(st.text() | st.from_regex(r"[a-z]+\+[0-9a-f]{8}\+[AB][A-Za-z0-9+/]{43}", fullmatch=True))
def test_anything_is_a_key_or_refused(text: str) -> None:
    try:
        assert str(VerifierKey.parse(text)) == text
    except EvidenceInvalid:
        return


def test_a_signing_key_is_not_shown() -> None:
    key = SigningKey.generate("a.example")
    assert key.seed.hex() not in repr(key) and repr(key.seed) not in repr(key)
    with pytest.raises(EvidenceInvalid) as refusal:
        SigningKey.parse(key.private_text()[:-2])
    assert key.private_text()[30:50] not in str(refusal.value)


def test_a_key_file_is_its_owners_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "keys" / "log.key"
    key = new_key_file(file, "a.example")
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_key_file(file, Algorithm.ED25519) == key
    with pytest.raises(SetupError, match="log, not of a witness"):
        read_key_file(file, Algorithm.COSIGNATURE)
    with pytest.raises(SetupError):
        new_key_file(file, "a.example")
    assert read_key_file(file, Algorithm.ED25519) == key
    file.chmod(0o640)
    with pytest.raises(SetupError, match="Others may read"):
        read_key_file(file, Algorithm.ED25519)
    file.chmod(0o600)
    file.write_text("not a key\n")
    with pytest.raises(SetupError, match="does not hold"):
        read_key_file(file, Algorithm.ED25519)
