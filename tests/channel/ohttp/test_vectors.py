"""The published examples of RFC 9458 (appendix A) and of the draft on chunks, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyhpke import KEMKeyPair
from pyhpke.keys.x25519_key import X25519Key

from cloister.channel.ohttp import encapsulation
from cloister.channel.ohttp.chunks import ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import ENTROPY_BYTES, HEADER_BYTES, Form, Header
from cloister.channel.ohttp.keys import KeyConfiguration, Suite


def blocks(document: Path) -> list[bytes]:
    """The hexadecimal blocks of the document, in order."""
    return [bytes.fromhex(one) for one in re.findall(r"~~~ hex-dump\n(.*?)~~~", document.read_text(), re.DOTALL)]


def key(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


def pair(private: bytes) -> KEMKeyPair:
    return KEMKeyPair(X25519Key(key(private)), X25519Key(key(private).public_key()))


def test_appendix_a_of_rfc_9458(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(shared / "vectors/ohttp/rfc9458_appendixA.md")
    secret, written, request, ephemeral, _, info, sent, response, exported, salt, *_, answered = found
    configuration = KeyConfiguration.decode(written)
    assert configuration.encode() == written and configuration.suites == (Suite(1, 1), Suite(1, 3))
    configuration = KeyConfiguration(1, configuration.public, (Suite(1, 1),))  # the suite that the example chose
    header, keys = encapsulation.encapsulate(configuration, Form.WHOLE, pair(ephemeral))
    assert header.info(Form.WHOLE) == info and keys.response_secret == exported
    assert encapsulation.seal_request(header, keys, request) == sent

    header = Header.decode(sent)
    keys = encapsulation.decapsulate(X25519Key(key(secret)), header, Form.WHOLE)
    assert encapsulation.open_request(header, keys, sent) == request
    monkeypatch.setattr(encapsulation, "response_nonce", lambda header: salt[32:])
    assert encapsulation.seal_response(header, keys, response) == answered
    assert encapsulation.open_response(header, keys, answered) == response


def test_the_example_of_chunks(shared: Path) -> None:
    found = blocks(shared / "vectors/ohttp/chunked_ohttp_example.md")
    secret, written, request, ephemeral, _, info, sent, response, exported, salt, *_, answered, _nonces = found
    configuration = KeyConfiguration(1, KeyConfiguration.decode(written).public, (Suite(1, 1),))
    header, keys = encapsulation.encapsulate(configuration, Form.CHUNKED, pair(ephemeral))
    assert header.info(Form.CHUNKED) == info and keys.response_secret == exported
    sealer = ChunkSealer(encapsulation.request_chain(header, keys), header.encode())
    assert sealer.seal(request[:12]) + sealer.seal(request[12:]) + sealer.end() == sent

    header = Header.decode(sent)
    keys = encapsulation.decapsulate(X25519Key(key(secret)), header, Form.CHUNKED)
    opener = ChunkOpener(lambda _: encapsulation.request_chain(header, keys), HEADER_BYTES)
    assert opener.feed(sent) + opener.finish() == request
    nonce = salt[32:]
    sealer = ChunkSealer(encapsulation.response_chain(header, keys, nonce), nonce)
    assert sealer.seal(response[:1]) + sealer.seal(response[1:]) + sealer.end() == answered
    back = ChunkOpener(lambda begins: encapsulation.response_chain(header, keys, begins), ENTROPY_BYTES[header.aead])
    assert back.feed(answered) + back.finish() == response
