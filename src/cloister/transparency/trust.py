"""What a verifier trusts: logs by key, witnesses and how many of them, and perhaps a Sigstore identity."""

from __future__ import annotations

from msgspec import Struct

from cloister.errors import SetupError
from cloister.transparency.checkpoint import SignedCheckpoint
from cloister.transparency.keys import Algorithm, VerifierKey


class SigstoreTrust(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may sign releases through Sigstore, and the roots to check that with: all of it given, nothing fetched."""

    trusted_root: bytes
    """The JSON of Sigstore's trusted root (`trusted_root.json`)."""
    identity: str
    """The signer: an e-mail address or a workflow's address, exactly."""
    issuer: str
    """Who vouched for the identity: the OIDC issuer's address, exactly."""


class ReleaseTrust(Struct, frozen=True, forbid_unknown_fields=True):
    """Keys are C2SP verifier keys, `name+hash+base64`."""

    logs: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    quorum: int | None = None
    """How many of the witnesses must have signed; unless said otherwise, all of them."""
    sigstore: SigstoreTrust | None = None

    @property
    def needed(self) -> int:
        """How many witnesses must have signed."""
        return len(self.witnesses) if self.quorum is None else self.quorum

    def log_keys(self) -> tuple[VerifierKey, ...]:
        return _keys(self.logs, Algorithm.ED25519, "log")

    def witness_keys(self) -> tuple[VerifierKey, ...]:
        """The witnesses' keys, a quorum of which must be possible."""
        keys = _keys(self.witnesses, Algorithm.COSIGNATURE, "witness")
        distinct = len({key.public for key in keys})
        if distinct != len(keys) or not 0 <= self.needed <= distinct:
            raise SetupError(
                f"A quorum of {self.needed} is asked of {distinct} different witnesses.",
                hint="List every witness once, and no more in the quorum than there are.",
            )
        return keys


def cosigners(signed: SignedCheckpoint, trust: ReleaseTrust) -> dict[str, int]:
    """Which trusted witnesses signed this checkpoint, and when."""
    found: dict[str, int] = {}
    for witness in trust.witness_keys():
        when = signed.cosigned_by(witness)
        if when is not None:
            found[witness.name] = when
    return found


def _keys(texts: tuple[str, ...], algorithm: Algorithm, kind: str) -> tuple[VerifierKey, ...]:
    keys = tuple(VerifierKey.parse(text) for text in texts)
    for key in keys:
        if key.algorithm is not algorithm:
            raise SetupError(f"The key of {key.name!r} is not a {kind}'s: it has algorithm {key.algorithm.value}.")
    return keys
