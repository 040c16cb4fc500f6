"""Checkpoints: the format, and who signed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cloister.errors import EvidenceInvalid
from cloister.transparency.checkpoint import Checkpoint, read_checkpoint
from cloister.transparency.merkle import EMPTY_ROOT, leaf_hash, verify_inclusion
from cloister.transparency.note import Algorithm, Note, SigningKey, VerifierKey
from tests.transparency.node import NOON, flips, witness_key

LOG = SigningKey.generate("log.example")
WITNESS = witness_key("witness.example")
TREE = Checkpoint("log.example", 7, bytes(range(32)))


def signed_note(text: str = TREE.text, key: SigningKey = LOG) -> str:
    return str(Note(text, (key.sign(text, at=NOON), WITNESS.sign(text, at=NOON))))


def test_a_checkpoint_is_read_and_its_signers_are_known() -> None:
    signed = read_checkpoint(signed_note())
    assert signed.checkpoint == TREE and str(signed) == signed_note()
    assert signed.signed_by(LOG.verifier) and signed.cosigned_by(WITNESS.verifier) == int(NOON.timestamp())


def test_roles_are_not_exchanged() -> None:
    signed = read_checkpoint(signed_note())
    assert not signed.signed_by(WITNESS.verifier) and signed.cosigned_by(LOG.verifier) is None
    assert not signed.signed_by(SigningKey.generate("log.example").verifier)
    # A key that is valid elsewhere does not speak for this log.
    elsewhere = SigningKey.generate("another.example")
    assert not read_checkpoint(signed_note(key=elsewhere)).signed_by(elsewhere.verifier)


def test_extension_lines_are_kept_and_signed() -> None:
    longer = Checkpoint("log.example", 7, bytes(32), ("more", "and more"))
    signed = read_checkpoint(signed_note(longer.text))
    assert signed.checkpoint == longer and signed.signed_by(LOG.verifier)


def test_every_bit_of_a_checkpoint_counts() -> None:
    for wrong in flips(signed_note().encode()):
        try:
            signed = read_checkpoint(wrong.decode())
        except (EvidenceInvalid, UnicodeDecodeError):
            continue
        assert not (signed.signed_by(LOG.verifier) and signed.cosigned_by(WITNESS.verifier)), wrong


ROOT = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "log.example\n7\n",
        f"log.example\n07\n{ROOT}\n",
        f"log.example\n-7\n{ROOT}\n",
        f"log.example\n+7\n{ROOT}\n",
        f"log.example\n7 \n{ROOT}\n",
        f"log.example\n٧\n{ROOT}\n",
        f"log.example\n0x7\n{ROOT}\n",
        f"log.example\n{2**63}\n{ROOT}\n",
        f"log.example\n{'9' * 4000}\n{ROOT}\n",
        f"log.example\n0\n{ROOT}\n",
        f"log.example\n7\n{ROOT[:-4]}\n",
        f"log.example\n7\n{ROOT[:-2]}B=\n",
        f"log.example\n7\n\n{ROOT}\n",
        f"log.example\n7\n{ROOT}\n\nmore\n",
        f"\n7\n{ROOT}\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(EvidenceInvalid):
        read_checkpoint(signed_note(text))


def test_the_empty_tree_has_one_root() -> None:
    assert read_checkpoint(signed_note(Checkpoint("log.example", 0, EMPTY_ROOT).text)).checkpoint.size == 0


@pytest.mark.parametrize("name", ["rekor2-happy-path", "rekor2-checkpoint-cosigned"])
def test_a_checkpoint_and_proof_of_a_public_log(shared: Path, name: str) -> None:
    folder = shared / "vectors" / "sigstore" / name
    entry = json.loads((folder / "bundle.sigstore.json").read_bytes())["verificationMaterial"]["tlogEntries"][0]
    proof = entry["inclusionProof"]
    signed = read_checkpoint(proof["checkpoint"]["envelope"])
    ed25519_prefix = 12  # of a SubjectPublicKeyInfo
    tlogs = json.loads((folder / "trusted_root.json").read_bytes())["tlogs"]
    keys = [base64.b64decode(tlog["publicKey"]["rawBytes"])[ed25519_prefix:] for tlog in tlogs]
    origin = signed.checkpoint.origin
    signers = [
        key
        for key in (VerifierKey(origin, Algorithm.ED25519, key) for key in keys if len(key) == 32)
        if signed.signed_by(key)
    ]
    assert len(signers) == 1
    assert verify_inclusion(
        int(proof["logIndex"]),
        signed.checkpoint.size,
        leaf_hash(base64.b64decode(entry["canonicalizedBody"])),
        [base64.b64decode(each) for each in proof["hashes"]],
        signed.checkpoint.root,
    )
