"""Where a node listens, and TLS to it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cloister.addresses import HttpAddress, is_loopback
from cloister.client.openai import Client
from cloister.client.verification import tls_to
from cloister.errors import ServiceUnavailable, SetupError
from tests.client.fake_node import KEY, MODEL, FakeNode, release_in
from tests.client.http_server import http_server
from tests.client.local_proxy import proxy_to


@pytest.mark.parametrize(
    ("text", "url", "prefix"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        (" https://node.example/v1/ ", "https://node.example:443", ""),
        ("https://node.example/below/v1", "https://node.example:443/below", "/below"),
        ("http://[::1]:9/", "http://[::1]:9", ""),
    ],
)
def test_an_address_is_read_with_or_without_v1(text: str, url: str, prefix: str) -> None:
    address = HttpAddress.parse(text)
    assert (str(address), address.prefix) == (url, prefix)
    assert address.url("/v1/sealed") == f"{url}/v1/sealed"
    assert address.path("/v1/sealed") == f"{prefix}/v1/sealed"


@pytest.mark.parametrize(
    "text",
    [
        *("nonsense", "ftp://node.example", "http://", "http://user@host", "http://:secret@host", "http://host?x=1"),
        *("http://host#part", "http://host:port", "http://höst", "http://host/a b", "http://host/é"),
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SetupError) as refused:
        HttpAddress.parse(text)
    assert "127.0.0.1" in str(refused.value)


def test_the_prefix_of_a_node_is_not_part_of_what_the_node_is_asked() -> None:
    address = HttpAddress.parse("https://node.example/below")
    assert address.endpoint("/below/v1/models") == "/v1/models"
    assert address.endpoint("/belowground/v1/models") == "/belowground/v1/models"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.evil.example", False), ("10.0.0.1", False)],
)
def test_only_loopback_is_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key behind it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a node")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    path = tmp_path / "node.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + private)
    return path


def test_an_authority_nobody_knows_is_refused_and_a_known_one_serves(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)
    node = FakeNode(release_in(tmp_path / "log"))
    with http_server(node.handle, tls=serving) as node.server:
        with pytest.raises(ServiceUnavailable):
            Client(node.url, api_key=KEY, allow_software_tee=True)
        assert not node.server.received
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(node.url, api_key=KEY, allow_software_tee=True) as client:
            assert client.models.list().data[0].id == MODEL
        with proxy_to(node.url) as local, openai.OpenAI(base_url=f"{local}/v1", api_key=KEY) as plain:
            events = plain.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
            )
            assert [event.choices[0].delta.content for event in events] == ["so ", "it ", "is ", None]


def test_for_plain_http_nothing_is_trusted_by_mistake() -> None:
    context = tls_to(HttpAddress.parse("http://node.example"))
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname and not context.get_ca_certs()
