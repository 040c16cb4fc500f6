"""C2SP checkpoints (a log's name, size and root, as a signed note), and what a verifier trusts."""

import base64
import re
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.merkle import EMPTY_ROOT, HASH_BYTES, MAX_SIZE
from cloister.transparency.note import Algorithm, Note, VerifierKey, exact_base64, read_note, signed_at

Predicate = Literal["https://slsa.dev/provenance/v1", "https://slsa.dev/provenance/v0.2"]
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        lines = (self.origin, str(self.size), base64.b64encode(self.root).decode(), *self.extensions)
        return "".join(line + "\n" for line in lines)


@dataclass(frozen=True)
class SignedCheckpoint:
    """A checkpoint with its signatures, none of them verified yet."""

    checkpoint: Checkpoint
    note: Note

    def __str__(self) -> str:
        return str(self.note)

    def signed_by(self, log: VerifierKey) -> bool:
        return log.algorithm is Algorithm.ED25519 and log.name == self.checkpoint.origin and log.signed(self.note)

    def cosigned_by(self, witness: VerifierKey) -> int | None:
        if witness.algorithm is not Algorithm.COSIGNATURE or not witness.signed(self.note):
            return None
        return max(signed_at(line) for line in witness.signatures_on(self.note))


def read_checkpoint(data: str) -> SignedCheckpoint:
    note = read_note(data)
    lines = note.text[:-1].split("\n")
    if len(lines) < 3 or not all(lines):
        raise EvidenceInvalid("A checkpoint has an origin, a size and a root, each on a line, and no empty lines.")
    origin, size, encoded, *extensions = lines
    root = exact_base64(encoded)
    if not _SIZE.fullmatch(size) or int(size) > MAX_SIZE:
        raise EvidenceInvalid("A checkpoint's second line is not the size of a tree.")
    if root is None or len(root) != HASH_BYTES or (size == "0" and root != EMPTY_ROOT):
        raise EvidenceInvalid("A checkpoint's third line is not the root of a tree of its size.")
    return SignedCheckpoint(Checkpoint(origin, int(size), root, tuple(extensions)), note)


class SigstoreTrust(Struct, frozen=True, forbid_unknown_fields=True):
    """The accepted signer of releases through Sigstore, and the roots to check signatures with. Nothing is fetched."""

    trusted_root: bytes  # The JSON of Sigstore's trusted root (`trusted_root.json`).
    identity: str  # The signer: an e-mail address or a workflow's address, exactly.
    issuer: str  # The OIDC issuer's address, exactly: it vouched for the identity.
    repository: str = ""  # exact address; "" accepts any: an identity may have several
    ref: str = ""  # The branch or tag it was built from (`refs/tags/v1.2`), exactly.
    workflow: str = ""  # The build's own definition: its file's address with `@` and its ref, exactly.
    predicates: tuple[Predicate, ...] = ("https://slsa.dev/provenance/v1", "https://slsa.dev/provenance/v0.2")
    """Types of predicate that make an in-toto statement a release's."""

    @property
    def pins(self) -> dict[str, str]:
        return {"repository": self.repository, "ref": self.ref, "workflow": self.workflow}


USUAL_CHECKPOINT_AGE_S = 7 * 24 * 3600.0


class ReleaseTrust(Struct, frozen=True, forbid_unknown_fields=True):
    """Keys are C2SP verifier keys, `name+hash+base64`."""

    logs: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    quorum: int | None = None  # How many of the witnesses must have signed; None for all.
    sigstore: SigstoreTrust | None = None
    max_checkpoint_age_s: float = USUAL_CHECKPOINT_AGE_S  # since the quorum signed; more than usual is a relaxation
    minimum_version: str = ""  # The oldest release that is accepted, however it is shown to be public.

    @property
    def needed(self) -> int:
        return len(self.witnesses) if self.quorum is None else self.quorum

    def log_keys(self) -> tuple[VerifierKey, ...]:
        return _keys(self.logs, Algorithm.ED25519, "log")

    def witness_keys(self) -> tuple[VerifierKey, ...]:
        keys = _keys(self.witnesses, Algorithm.COSIGNATURE, "witness")
        distinct = len({key.public for key in keys})
        if distinct != len(keys) or not 0 <= self.needed <= distinct:
            hint = "List every witness once, and no more in the quorum than there are."
            raise SetupError(f"A quorum of {self.needed} is asked of {distinct} different witnesses.", hint=hint)
        return keys


def _keys(texts: tuple[str, ...], algorithm: Algorithm, kind: str) -> tuple[VerifierKey, ...]:
    keys = tuple(VerifierKey.parse(text) for text in texts)
    for key in keys:
        if key.algorithm is not algorithm:
            raise SetupError(f"The key of {key.name!r} is not a {kind}'s: it has algorithm {key.algorithm.value}.")
    return keys
