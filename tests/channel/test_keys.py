"""The keys of a request: RFC 9180's own vectors, agreement of both sides, points that must be refused;
a message is taken once, and nothing is forgotten while the key lives.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import secrets
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, KEMKeyPair
from pyhpke.keys.x25519_key import X25519Key

from cloister.channel import sealing as keys
from cloister.channel.sealing import ChannelKey, SeenMessages, address_to
from cloister.errors import ChannelBroken, ChannelKeyUnknown, MessageRepeated

# RFC 9180's test vector for our very suite: base mode, X25519, HKDF-SHA256, export-only.
RFC = {
    "info": "4f6465206f6e2061204772656369616e2055726e",
    "skRm": "33d196c830a12f9ac65d6e565a590d80f04ee9b19c83c87f2c170d972a812848",
    "enc": "e5e8f9bfff6c2f29791fc351d2c25ce1299aa5eaca78a757c0b4fb4bcd830918",
    "exports": {
        "": "7a36221bd56d50fb51ee65edfd98d06a23c4dc87085aa5866cb7087244bd2a36",
        "00": "d5535b87099c6c3ce80dc112a2671c6ec8e811a2f284f948cec6dd1708ee33f0",
        "54657374436f6e74657874": "ffaabc85a776136ca0c378e5d084c9140ab552b78f039d2e8775f26efff4c70e",
    },
}

# The points of small order and their non-canonical spellings: each gives the all-zero secret.
LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def test_rfc_vector_of_our_suite() -> None:
    skr = X25519Key.from_private_bytes(bytes.fromhex(RFC["skRm"]))
    context = keys._SUITE.create_recipient_context(bytes.fromhex(RFC["enc"]), skr, bytes.fromhex(RFC["info"]))
    for exporter, expected in RFC["exports"].items():
        assert context.export(bytes.fromhex(exporter), 32).hex() == expected


def test_all_rfc_vectors_of_x25519_base_mode(shared: Path) -> None:
    vectors = json.loads(gzip.decompress((shared / "vectors/hpke/vectors_rfc9180_5f503c5.json.gz").read_bytes()))
    chosen = [v for v in vectors if (v["mode"], v["kem_id"], v["kdf_id"]) == (0, 0x20, 1)]
    assert {v["aead_id"] for v in chosen} == {1, 2, 3, 0xFFFF}
    for vector in chosen:
        suite = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId(vector["aead_id"]))
        skr = X25519Key.from_private_bytes(bytes.fromhex(vector["skRm"]))
        pkr = X25519Key.from_public_bytes(bytes.fromhex(vector["pkRm"]))
        ske = X25519PrivateKey.from_private_bytes(bytes.fromhex(vector["skEm"]))
        info = bytes.fromhex(vector["info"])
        pair = KEMKeyPair(X25519Key(ske), X25519Key(ske.public_key()))
        enc, sender = suite.create_sender_context(pkr, info, eks=pair)
        recipient = suite.create_recipient_context(enc, skr, info)
        assert enc.hex() == vector["enc"]
        for export in vector["exports"]:
            for side in (sender, recipient):
                exported = side.export(bytes.fromhex(export["exporter_context"]), export["L"])
                assert exported.hex() == export["exported_value"]
        for message in vector["encryptions"]:
            plaintext, aad = bytes.fromhex(message["pt"]), bytes.fromhex(message["aad"])
            assert sender.seal(plaintext, aad).hex() == message["ct"]
            assert recipient.open(bytes.fromhex(message["ct"]), aad) == plaintext


def test_keys_are_what_rfc_9180_says() -> None:
    """The same keys derived by hand from §4.1, §5.1 and §5.3 of the RFC, without pyhpke."""
    private = X25519PrivateKey.generate()
    node = ChannelKey(private)
    enc, mine = address_to(node.public)
    exporter = _exporter_secret(private, enc, node.public, b"cloister channel v1")
    for name in ("request", "prompt", "response"):
        exported = _expand(_HPKE, exporter, b"sec", b"cloister " + name.encode(), 32)
        assert getattr(mine, name) == exported


def test_both_sides_agree_and_the_three_keys_differ() -> None:
    node = ChannelKey.generate()
    enc, mine = address_to(node.public)
    theirs = node.accept(enc)
    assert (mine.request, mine.prompt, mine.response) == (theirs.request, theirs.prompt, theirs.response)
    assert len({bytes(mine.request), bytes(mine.prompt), bytes(mine.response)}) == 3


def test_two_requests_never_share_keys() -> None:
    node = ChannelKey.generate()
    seen: set[bytes] = set()
    for _ in range(200):
        enc, mine = address_to(node.public)
        seen |= {enc, bytes(mine.request), bytes(mine.prompt), bytes(mine.response)}
    assert len(seen) == 800


def test_another_nodes_key_or_another_purpose_gives_other_keys() -> None:
    node, other = ChannelKey.generate(), ChannelKey.generate()
    enc, mine = address_to(node.public)
    assert other.accept(enc).request != mine.request
    assert node.accept(enc, info=b"something else").request != mine.request


def test_erase_overwrites_all_three() -> None:
    _, mine = address_to(ChannelKey.generate().public)
    mine.erase()
    assert mine.request == mine.prompt == mine.response == bytes(32)


def test_keys_do_not_show_in_repr() -> None:
    _, mine = address_to(ChannelKey.generate().public)
    assert mine.request.hex() not in repr(mine) and repr(bytes(mine.request)) not in repr(mine)


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("high_bit", [0, 0x80])
def test_low_order_points_are_refused_by_both_sides(point: str, high_bit: int) -> None:
    raw = bytearray.fromhex(point)
    raw[31] |= high_bit  # X25519 ignores it, so it must not open a way around
    with pytest.raises(ChannelBroken):
        ChannelKey.generate().accept(bytes(raw))
    with pytest.raises(ChannelBroken):
        address_to(bytes(raw))


@given(st.binary(max_size=64))
def test_any_bytes_as_enc_give_keys_or_channel_broken(enc: bytes) -> None:
    try:
        _NODE.accept(enc)
    except ChannelBroken:
        return
    assert len(enc) == 32


@given(st.integers(0, 255))
def test_a_flipped_bit_of_enc_gives_other_keys(bit: int) -> None:
    """The ignored high bit too: `enc` itself goes into the key schedule."""
    enc, mine = address_to(_NODE.public)
    altered = bytearray(enc)
    altered[bit // 8] ^= 1 << bit % 8
    assert _NODE.accept(bytes(altered)).request != mine.request


def test_key_id_names_the_key() -> None:
    node = ChannelKey.generate()
    assert node.key_id == hashlib.sha256(node.public).digest()[:8]
    assert node.key_id != ChannelKey.generate().key_id


_NODE = ChannelKey.generate()
_KEM = b"KEM\x00\x20"
_HPKE = b"HPKE\x00\x20\x00\x01\xff\xff"


def _extract(suite: bytes, salt: bytes, label: bytes, ikm: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, "sha256")


def _expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labeled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, labeled + b"\x01", "sha256")[:length]


def _exporter_secret(private: X25519PrivateKey, enc: bytes, public: bytes, info: bytes) -> bytes:
    dh = private.exchange(X25519PublicKey.from_public_bytes(enc))
    shared = _expand(_KEM, _extract(_KEM, b"", b"eae_prk", dh), b"shared_secret", enc + public, 32)
    schedule = b"\0" + _extract(_HPKE, b"", b"psk_id_hash", b"") + _extract(_HPKE, b"", b"info_hash", info)
    return _expand(_HPKE, _extract(_HPKE, shared, b"secret", b""), b"exp", schedule, 32)


def test_a_repeated_enc_is_refused_and_others_are_not() -> None:
    seen = SeenMessages(limit=10)
    node = ChannelKey.generate()
    first, second = (address_to(node.public)[0] for _ in range(2))
    seen.add(first)
    seen.add(second)
    for enc in (first, second, first):
        with pytest.raises(MessageRepeated):
            seen.add(enc)
    assert len(seen._seen) == 2


def test_full_refuses_rather_than_forgets() -> None:
    seen = SeenMessages(limit=3)
    taken = [secrets.token_bytes(32) for _ in range(3)]
    for enc in taken:
        assert not seen.full
        seen.add(enc)
    assert seen.full
    with pytest.raises(ChannelKeyUnknown, match="Verify the node and send"):
        seen.add(secrets.token_bytes(32))
    with pytest.raises(MessageRepeated):
        seen.add(taken[0])
