"""Atheris harness: whatever bytes come, the parsers of the log give a value that writes itself back, or one error.

Run it by hand for as long as you like: `python tests/fuzz/transparency_parsers.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime

import atheris

with atheris.instrument_imports(include=["cloister.transparency"]):
    from cloister.errors import EvidenceInvalid
    from cloister.transparency.checkpoint import ReleaseTrust, read_checkpoint
    from cloister.transparency.manifest import FORMAT, Manifest, measurement, read_entry, read_manifest
    from cloister.transparency.merkle import read_bundle, verify_consistency, verify_inclusion, write_bundle
    from cloister.transparency.note import Note, SigningKey, VerifierKey, read_note, read_signature
    from cloister.transparency.proof import ReleaseProof, read_proof, verify_release

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOG = SigningKey.generate("log.example")
TRUST = ReleaseTrust(logs=(str(LOG.verifier),))
MANIFEST = Manifest(FORMAT, "1", {"src/cloister/__init__.py": "0" * 64}, None, None).encoded()


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def note(data: bytes) -> None:
    text = text_of(data)
    assert str(read_note(text)) == text


def checkpoint(data: bytes) -> None:
    text = text_of(data)
    signed = read_checkpoint(text)
    assert str(signed) == text and signed.checkpoint.text == signed.note.text


def signed_checkpoint(data: bytes) -> None:
    """As if the log had signed nonsense."""
    text = data.decode("utf-8", "replace") + "\n"
    signed = read_checkpoint(str(Note(text, (LOG.sign(text),))))
    assert signed.signed_by(LOG.verifier) == (signed.checkpoint.origin == LOG.name)


def key(data: bytes) -> None:
    text = text_of(data)
    assert str(VerifierKey.parse(text)) == text


def signature(data: bytes) -> None:
    text = text_of(data)
    assert read_signature(text).line == text + "\n"


def manifest(data: bytes) -> None:
    assert read_manifest(data).encoded() == data


def bundle(data: bytes) -> None:
    width = data[0] if data else 0
    assert write_bundle(read_bundle(data[1:], width)) == data[1:]


def merkle(data: bytes) -> None:
    proof = [data[at : at + 32] for at in range(0, len(data), 32)]
    assert not verify_inclusion(len(data) % 7, 9, bytes(32), proof, bytes(32))
    assert not verify_consistency(5, 9, bytes(32), bytes(range(32)), proof)


def proof(data: bytes) -> None:
    verify_release(read_proof(data), bytes(32), at=NOON, trusted=TRUST, seen=None)


def forged_checkpoint(data: bytes) -> None:
    """Nothing but the log's own signature makes a proof pass."""
    forged = ReleaseProof(manifest=MANIFEST, checkpoint=text_of(data), log_key=str(LOG.verifier))
    assert not verify_release(forged, measurement(MANIFEST), at=NOON, trusted=TRUST, seen=None).passed


PARSERS = [
    note,
    checkpoint,
    signed_checkpoint,
    key,
    signature,
    manifest,
    bundle,
    merkle,
    proof,
    forged_checkpoint,
    read_entry,
    lambda data: SigningKey.parse("PRIVATE+KEY+" + text_of(data)),
]


def one_input(data: bytes) -> None:
    if data:
        with contextlib.suppress(EvidenceInvalid):
            PARSERS[data[0] % len(PARSERS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
