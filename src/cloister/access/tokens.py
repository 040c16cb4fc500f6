"""Publicly verifiable Privacy Pass tokens, type 2 (RFC 9577 §2, RFC 9578 §6): challenges, tokens and their encodings.

A token shows that its issuer signed it, not which user took it: the issuer signed a blinded message. Bytes, no I/O.
"""

import base64
import binascii
import hashlib
import re
import secrets
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from cloister.access import blind_rsa
from cloister.access.blind_rsa import DETERMINISTIC, Blinded, BlindSignatureError
from cloister.errors import TokenInvalid

TOKEN_TYPE = 2
KEY_BITS = 2048
_SIGNATURE = KEY_BITS // 8  # Nk of RFC 9578 §8.2.2
_NONCE = _DIGEST = 32
TOKEN_BYTES = 2 + _NONCE + 2 * _DIGEST + _SIGNATURE
REQUEST_BYTES = 2 + 1 + _SIGNATURE
RESPONSE_BYTES = _SIGNATURE
SCHEME = "PrivateToken"
MOST_OF_A_HEADER = 8192

# The AlgorithmIdentifier of a token key (RFC 9578 §6.5): RSASSA-PSS with SHA-384, MGF1-SHA-384 and a salt of 48 bytes.
_PSS = bytes.fromhex(
    "303d06092a864886f70d01010a3030a00d300b0609608648016503040202a11a301806092a864886f70d010108300b0609608648016503040202a2030201"
    "30"
)
_PLAIN = bytes.fromhex("300d06092a864886f70d0101010500")  # rsaEncryption
_PARAMETER = re.compile(r"""\s*([A-Za-z-]+)\s*=\s*(?:"([^"\\]*)"|([A-Za-z0-9_=-]*))\s*""")


@dataclass(frozen=True, slots=True)
class Challenge:
    """RFC 9577 §2.1: which issuer's tokens an origin takes."""

    issuer: str
    origin: str = ""
    context: bytes = b""
    """Empty, or 32 bytes that a token must be bound to."""

    def encode(self) -> bytes:
        if len(self.context) not in (0, _DIGEST):
            raise TokenInvalid("A redemption context has 0 or 32 bytes.")
        if not self.issuer:
            raise TokenInvalid("A challenge must name an issuer.")
        fields = (
            _vector(self.issuer.encode("ascii"), 2),
            _vector(self.context, 1),
            _vector(self.origin.encode("ascii"), 2),
        )
        return TOKEN_TYPE.to_bytes(2) + b"".join(fields)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()

    @classmethod
    def decode(cls, data: bytes) -> "Challenge":
        if int.from_bytes(data[:2]) != TOKEN_TYPE:
            raise TokenInvalid("The challenge is for another type of token.")
        issuer, rest = _taken(data[2:], 2)
        context, rest = _taken(rest, 1)
        origin, rest = _taken(rest, 2)
        if rest or len(context) not in (0, _DIGEST) or not issuer:
            raise TokenInvalid("The challenge is malformed.")
        try:
            return cls(issuer.decode("ascii"), origin.decode("ascii"), context)
        except UnicodeDecodeError:
            raise TokenInvalid("The challenge's names are not ASCII.") from None


@dataclass(frozen=True, slots=True)
class Token:
    """RFC 9577 §2.2."""

    nonce: bytes
    challenge_digest: bytes
    key_id: bytes
    authenticator: bytes

    @property
    def signed(self) -> bytes:
        """What the issuer signed: all but the authenticator."""
        return TOKEN_TYPE.to_bytes(2) + self.nonce + self.challenge_digest + self.key_id

    def encode(self) -> bytes:
        return self.signed + self.authenticator

    @classmethod
    def decode(cls, data: bytes) -> "Token":
        if len(data) != TOKEN_BYTES or int.from_bytes(data[:2]) != TOKEN_TYPE:
            raise TokenInvalid("This is no token of type 2.")
        at = 2 + _NONCE
        return cls(data[2:at], data[at : at + _DIGEST], data[at + _DIGEST : at + 2 * _DIGEST], data[at + 2 * _DIGEST :])

    def verify(self, key: rsa.RSAPublicKey) -> None:
        """RFC 9578 §6.4: TokenInvalid unless this key's owner signed it."""
        try:
            blind_rsa.verify(key, self.signed, self.authenticator, DETERMINISTIC)
        except BlindSignatureError:
            raise TokenInvalid("The token is not signed by its issuer.") from None


@dataclass(frozen=True, slots=True)
class PendingToken:
    """RFC 9578 §6.1 at the client: what it sends, and what it needs to finish the token."""

    key: rsa.RSAPublicKey
    nonce: bytes
    challenge_digest: bytes
    key_id: bytes
    blinded: Blinded

    @classmethod
    def draw(
        cls,
        key: rsa.RSAPublicKey,
        challenge: Challenge,
        *,
        nonce: bytes | None = None,
        salt: bytes | None = None,
        r: int | None = None,
    ) -> "PendingToken":
        """Only test vectors give the random values."""
        nonce = secrets.token_bytes(_NONCE) if nonce is None else nonce
        key_id = key_id_of(key)
        signed = TOKEN_TYPE.to_bytes(2) + nonce + challenge.digest + key_id
        return cls(key, nonce, challenge.digest, key_id, blind_rsa.blind(key, signed, DETERMINISTIC, salt=salt, r=r))

    @property
    def request(self) -> bytes:
        return TOKEN_TYPE.to_bytes(2) + self.key_id[-1:] + self.blinded.message

    def finish(self, response: bytes) -> Token:
        """RFC 9578 §6.3."""
        token = Token(self.nonce, self.challenge_digest, self.key_id, b"")
        try:
            signature = blind_rsa.finalize(self.key, token.signed, response, self.blinded, DETERMINISTIC)
        except BlindSignatureError:
            raise TokenInvalid("The issuer's answer is no valid signature.") from None
        return Token(self.nonce, self.challenge_digest, self.key_id, signature)


def blinded_message(request: bytes, key_id: bytes) -> bytes:
    """RFC 9578 §6.2 at the issuer: what it is to sign with the key of this id."""
    if len(request) != REQUEST_BYTES or int.from_bytes(request[:2]) != TOKEN_TYPE:
        raise TokenInvalid("This is no request for a token of type 2.")
    if request[2] != key_id[-1]:
        raise TokenInvalid("The request is for another of the issuer's keys.")
    return request[3:]


def encode_key(key: rsa.RSAPublicKey) -> bytes:
    """RFC 9578 §6.5: a SubjectPublicKeyInfo that names RSASSA-PSS."""
    plain = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    at = plain.index(_PLAIN)
    content = _PSS + plain[at + len(_PLAIN) :]
    return b"\x30\x82" + len(content).to_bytes(2) + content


def decode_key(data: bytes) -> rsa.RSAPublicKey:
    """TokenInvalid unless it is a key of the right size, in the one encoding that has this key id."""
    if data[:1] != b"\x30" or data[4 : 4 + len(_PSS)] != _PSS:
        raise TokenInvalid("This is no key of an issuer of tokens.")
    content = _PLAIN + data[4 + len(_PSS) :]
    try:
        key = load_der_public_key(b"\x30\x82" + len(content).to_bytes(2) + content)
    except ValueError:
        raise TokenInvalid("An issuer's key does not decode.") from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != KEY_BITS or encode_key(key) != data:
        raise TokenInvalid(f"An issuer's key is not an RSA key of {KEY_BITS} bits.")
    return key


def key_id_of(key: rsa.RSAPublicKey) -> bytes:
    return hashlib.sha256(encode_key(key)).digest()


def authorization(token: Token) -> str:
    """RFC 9577 §2.2.2, the value of the header Authorization."""
    return f'{SCHEME} token="{_base64(token.encode())}"'


def authenticate(challenge: Challenge, key: bytes = b"") -> str:
    """RFC 9577 §2.1.1, the value of the header WWW-Authenticate. Without a key: the issuer's list has it."""
    named = f', token-key="{_base64(key)}"' if key else ""
    return f'{SCHEME} challenge="{_base64(challenge.encode())}"{named}'


def token_of(authorization: str) -> Token:
    given = _credentials(authorization)
    return Token.decode(given[0].get("token", b"") if len(given) == 1 else b"")


def challenges_of(authenticate: str) -> list[tuple[Challenge, rsa.RSAPublicKey]]:
    """Those for tokens of type 2, with the key that tokens are to be signed with; a header may hold others beside."""
    given = [each for each in _credentials(authenticate) if each.get("challenge", b"")[:2] == TOKEN_TYPE.to_bytes(2)]
    return [(Challenge.decode(each["challenge"]), decode_key(each.get("token-key", b""))) for each in given]


def _credentials(header: str) -> list[dict[str, bytes]]:
    """The parameters of each challenge or credential in a header (RFC 9110 §11.6); one that is no base64 is empty."""
    if len(header) > MOST_OF_A_HEADER:
        raise TokenInvalid("The header is too long.")
    found: list[dict[str, bytes]] = []
    for part in header.split(","):
        words = part.strip()
        if words[: len(SCHEME) + 1].lower() == f"{SCHEME} ".lower():
            found.append({})
            words = words[len(SCHEME) :]
        match = _PARAMETER.fullmatch(words)
        if match is None or not found or match[1] in found[-1]:
            raise TokenInvalid(f"The header is not of the scheme {SCHEME}.")
        value = match[2] if match[2] is not None else match[3]
        try:
            found[-1][match[1]] = base64.b64decode(value.encode(), altchars=b"-_", validate=True)
        except binascii.Error:
            found[-1][match[1]] = b""
    return found


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _vector(data: bytes, width: int) -> bytes:
    if len(data) >= 1 << 8 * width:
        raise TokenInvalid("A field of a challenge is too long.")
    return len(data).to_bytes(width) + data


def _taken(data: bytes, width: int) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:width])
    if len(data) < width + length:
        raise TokenInvalid("The challenge is cut off.")
    return data[width : width + length], data[width + length :]
