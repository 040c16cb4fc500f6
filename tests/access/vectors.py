"""Keys and tokens for tests of access; published vectors from the shared folder."""

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from cloister.access.blind_rsa import Signer
from cloister.access.tokens import Challenge, PendingToken, Token, blinded_message

KEY = rsa.generate_private_key(65537, 2048)
SIGNER = Signer(KEY)
CHALLENGE = Challenge("issuer.example")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def new_token(signer: Signer = SIGNER, challenge: Challenge = CHALLENGE) -> Token:
    pending = PendingToken.draw(signer.public, challenge)
    return pending.finish(signer.sign(blinded_message(pending.request, pending.key_id)))
