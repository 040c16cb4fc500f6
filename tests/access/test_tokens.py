"""Privacy Pass tokens of type 2: RFC 9578's vectors, the header, and what must be refused."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from cloister.access import tokens
from cloister.access.blind_rsa import Signer
from cloister.access.tokens import Challenge, PendingToken, Token
from cloister.errors import TokenInvalid
from tests.access.vectors import CHALLENGE, SIGNER, new_token, read, unhex


def test_published_vectors_of_issuance(shared: Path) -> None:
    for vector in read(shared / "vectors/privacypass/pub_verif_rfc9578.go.json"):
        given = {name: unhex(text) for name, text in vector.items()}
        private = load_pem_private_key(given["skS"], None)
        assert isinstance(private, rsa.RSAPrivateKey)
        key = tokens.decode_key(given["pkS"])
        assert key == private.public_key() and tokens.encode_key(key) == given["pkS"]
        challenge = Challenge.decode(given["token_challenge"])
        assert challenge.encode() == given["token_challenge"]
        r = int.from_bytes(given["blind"])
        pending = PendingToken.draw(key, challenge, nonce=given["nonce"], salt=given["salt"], r=r)
        assert pending.request == given["token_request"]
        response = Signer(private).sign(tokens.blinded_message(pending.request, pending.key_id))
        assert response == given["token_response"]
        token = pending.finish(response)
        assert token.encode() == given["token"]
        token.verify(key)


def test_published_vectors_of_the_header(shared: Path) -> None:
    for vector in read(shared / "vectors/privacypass/auth_scheme_header_v14.json"):
        found = tokens.challenges_of(vector["WWW-Authenticate"])
        keys = [tokens.encode_key(key).hex() for _, key in found]
        wanted = [number for number in ("0", "1") if vector.get(f"token-type-{number}") == 2]
        assert keys == [vector[f"token-key-{number}"] for number in wanted] != []
        challenges = [challenge.encode().hex() for challenge, _ in found]
        assert challenges == [vector[f"token-challenge-{number}"] for number in wanted]


def test_published_vectors_of_what_is_signed(shared: Path) -> None:
    for vector in read(shared / "vectors/privacypass/auth_scheme_token_v14.json"):
        given = {name: unhex(text) for name, text in vector.items() if name != "comment"}
        challenge = Challenge(given["issuer_name"].decode(), given["origin_info"].decode(), given["redemption_context"])
        signed = Token(given["nonce"], challenge.digest, given["token_key_id"], b"").signed
        assert signed == given["token_authenticator_input"]


def test_a_token_goes_through_its_header() -> None:
    token = new_token()
    assert tokens.token_of(tokens.authorization(token)) == token
    header = tokens.authenticate(CHALLENGE, tokens.encode_key(SIGNER.public))
    assert tokens.challenges_of(header) == [(CHALLENGE, SIGNER.public)]


@given(place=st.integers(0, tokens.TOKEN_BYTES - 1), bit=st.integers(0, 7))
def test_a_token_with_any_bit_changed_is_refused(place: int, bit: int) -> None:
    data = bytearray(TOKEN)
    data[place] ^= 1 << bit
    with pytest.raises(TokenInvalid):
        Token.decode(bytes(data)).verify(SIGNER.public)


TOKEN = new_token().encode()


@given(header=st.text(max_size=60) | st.text(max_size=60).map(lambda text: f"PrivateToken {text}"))
def test_a_header_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(TokenInvalid):
        tokens.token_of(header)


@pytest.mark.parametrize(
    "header",
    [
        "PrivateToken " + ",".join(["a=b"] * 3000),
        tokens.authorization(new_token()) + ", " + tokens.authorization(new_token()),
        "Bearer x",
        'PrivateToken token="AAI="',
    ],
    ids=["long", "two", "bearer", "short"],
)
def test_a_header_with_more_or_less_than_one_token_is_refused(header: str) -> None:
    with pytest.raises(TokenInvalid):
        tokens.token_of(header)


@given(cut=st.integers(0, len(CHALLENGE.encode()) - 1))
def test_a_challenge_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(TokenInvalid):
        Challenge.decode(CHALLENGE.encode()[:cut])


def test_a_key_of_another_size_or_encoding_is_refused() -> None:
    with pytest.raises(TokenInvalid, match="2048"):
        tokens.decode_key(tokens.encode_key(rsa.generate_private_key(65537, 3072).public_key()))
    right = tokens.encode_key(SIGNER.public)
    for wrong in (right + b"\0", right[:-1], b"", right.replace(b"\x05\x30", b"\x05\x31"), b"\x30\x82" + bytes(400)):
        if wrong != right:
            with pytest.raises(TokenInvalid):
                tokens.decode_key(wrong)


def test_a_request_for_another_key_is_refused() -> None:
    pending = PendingToken.draw(SIGNER.public, CHALLENGE)
    other = bytes([*pending.key_id[:-1], pending.key_id[-1] ^ 1])
    with pytest.raises(TokenInvalid, match="another of the issuer's keys"):
        tokens.blinded_message(pending.request, other)
