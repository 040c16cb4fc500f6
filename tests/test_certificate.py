"""A certificate and its key: what is refused, what is taken of the files, and that the key stays and shows nowhere."""

from __future__ import annotations

import os
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from cloister.certificate import ServerTls, last_day, read_certificate
from cloister.config import GatewaySettings
from cloister.errors import SetupError
from cloister.messages.controller_gateway import MAX_CHAIN_BYTES, MAX_KEY_BYTES, ShowCertificate, TlsCertificate
from tests.certificates import Key, settings_of, write_pair


def greeted(tls: ServerTls, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, *offered: str) -> tuple[str, str]:
    """By a handshake in memory: the name of the certificate that is shown, and the protocol that is chosen."""
    assert tls.context
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.minimum_version = client_context.maximum_version = version
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    client_context.set_ciphers("ALL:@SECLEVEL=0")
    client_context.set_alpn_protocols(list(offered) or ["h2", "http/1.1"])
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = client_context.wrap_bio(down, up), tls.context.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for one in (client, server):
            with suppress(ssl.SSLWantReadError):
                one.do_handshake()
    shown = client.getpeercert(binary_form=True)
    assert shown and client.version()
    words = ["openssl", "x509", "-inform", "DER", "-noout", "-subject", "-nameopt", "multiline"]
    subject = subprocess.run(words, input=shown, capture_output=True, check=True).stdout.decode()
    return subject.split("=")[-1].strip(), client.selected_alpn_protocol() or ""


KEYS: dict[str, Key | None] = {
    "p256": None,
    "ed": ed25519.Ed25519PrivateKey.generate(),
    "rsa": rsa.generate_private_key(65537, 2048),
}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_pair_is_shown_under_tls_that_is_new_enough(tmp_path: Path, key: Key | None) -> None:
    certificate = read_certificate(write_pair(tmp_path, key=key))
    assert certificate
    (tls := ServerTls()).show(certificate)
    assert greeted(tls) == greeted(tls, ssl.TLSVersion.TLSv1_2) == ("one", "http/1.1")
    with pytest.raises((ssl.SSLError, AssertionError)):
        greeted(tls, ssl.TLSVersion.TLSv1_1)


def test_the_next_pair_takes_the_place_of_one_of_another_kind(tmp_path: Path) -> None:
    """An SSL context keeps a certificate for each kind of key: in the same one, clients might still see the first."""
    tls = ServerTls()
    for name, key in (("one", None), ("two", KEYS["rsa"]), ("three", None)):
        certificate = read_certificate(write_pair(tmp_path, name, key))
        assert certificate
        tls.show(certificate)
        assert greeted(tls)[0] == name


def test_the_file_in_memory_is_empty_afterwards(tmp_path: Path) -> None:
    tls = ServerTls()
    certificate = read_certificate(write_pair(tmp_path))
    assert certificate
    tls.show(certificate)
    assert os.fstat(tls._file).st_size == 0
    with pytest.raises(ssl.SSLError):
        tls.show(TlsCertificate(certificate.chain, b"no key"))
    assert os.fstat(tls._file).st_size == 0 and greeted(tls)[0] == "one", "the one before stays"


def test_only_certificates_and_the_key_are_taken_of_the_files(tmp_path: Path) -> None:
    settings = write_pair(tmp_path)
    assert settings.tls_cert and settings.tls_key
    settings.tls_cert.write_bytes(b"# a note\n" + settings.tls_cert.read_bytes() + settings.tls_key.read_bytes())
    certificate = read_certificate(settings)
    assert certificate and b"note" not in certificate.chain and b"PRIVATE" not in certificate.chain
    assert certificate.key.count(b"-----BEGIN") == 1 and len(last_day(certificate)) == len("2030-12-31")


def test_without_the_options_there_is_none() -> None:
    assert read_certificate(GatewaySettings()) is None


@pytest.mark.parametrize("field", ["tls_cert", "tls_key"])
def test_one_option_alone_is_refused(field: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="belong together"):
        GatewaySettings(**{field: tmp_path / "file"})


def refused(settings: GatewaySettings) -> str:
    with pytest.raises(SetupError) as wrong:
        read_certificate(settings)
    assert wrong.value.hint
    return str(wrong.value)


def test_a_pair_that_does_not_count_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    settings, strange = write_pair(tmp_path), write_pair(other)
    assert settings.tls_cert and settings.tls_key and strange.tls_key
    key = settings.tls_key.read_bytes()
    settings.tls_key.write_bytes(strange.tls_key.read_bytes())
    assert "is not the key of" in refused(settings)
    settings.tls_key.write_bytes(key)
    settings.tls_key.chmod(0o640)
    assert "Others may read" in refused(settings)
    settings.tls_key.chmod(0o600)
    assert read_certificate(settings)
    for from_day, days in ((-30, 29), (2, 30)):
        assert "counts only from" in refused(write_pair(tmp_path, from_day=from_day, days=days))
    assert "no key in PEM that can be read" in refused(write_pair(tmp_path, password=b"a secret"))
    assert "OpenSSL does not take" in refused(write_pair(tmp_path, key=rsa.generate_private_key(65537, 1024)))


@pytest.mark.parametrize(
    "content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\0" * 99]
)
def test_files_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    settings = write_pair(tmp_path)
    assert settings.tls_cert and settings.tls_key
    good = settings.tls_cert.read_bytes()
    settings.tls_cert.write_bytes(content)
    assert "is no certificate" in refused(settings)
    settings.tls_cert.write_bytes(good)
    settings.tls_key.write_bytes(content)
    assert "is no key" in refused(settings)
    settings.tls_cert.write_bytes(good * (MAX_CHAIN_BYTES // len(good) + 1))
    assert "larger than" in refused(settings)
    settings.tls_cert.unlink()
    assert "cannot be read" in refused(settings)


def test_the_message_is_bounded_and_silent(tmp_path: Path) -> None:
    certificate = read_certificate(write_pair(tmp_path, key=ec.generate_private_key(ec.SECP384R1())))
    assert certificate
    message = ShowCertificate(certificate)
    assert "BEGIN" not in repr(message) + str(message) + repr(certificate)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ShowCertificate) == message
    for chain, key in ((bytes(MAX_CHAIN_BYTES + 1), b"k"), (b"c", bytes(MAX_KEY_BYTES + 1)), (b"", b"k"), (b"c", b"")):
        with pytest.raises(msgspec.ValidationError):
            wrong = msgspec.msgpack.encode(ShowCertificate(TlsCertificate(chain, key)))
            msgspec.msgpack.decode(wrong, type=ShowCertificate)


def test_the_settings_name_no_key(tmp_path: Path) -> None:
    assert b"PRIVATE" not in settings_of(tmp_path).model_dump_json().encode()
