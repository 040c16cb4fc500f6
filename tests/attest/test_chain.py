"""A certificate has one encoding: who changes what no signature covers has another one, which does not pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.attest.chain import signed_directly
from cloister.attest.snp.certificate import revocations_issued


def with_an_even_signature() -> x509.Certificate:
    """Signed by itself, until the signature's last bit is 0: that one could be called unused."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(1))
    while True:
        made = builder.sign(key, SHA256())
        if made.signature[-1] % 2 == 0:
            return made


def test_a_signature_with_unused_bits_does_not_pass() -> None:
    made = with_an_even_signature()
    changed = bytearray(made.public_bytes(Encoding.DER))
    changed[-len(made.signature) - 1] = 1
    other = x509.load_der_x509_certificate(bytes(changed))
    assert other.signature == made.signature, "the library takes it for the same"
    assert signed_directly(made, made) and not signed_directly(other, made)


def test_a_revocation_list_whose_signature_has_unused_bits_does_not_pass() -> None:
    key, now = rsa.generate_private_key(65537, 2048), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ARK")])
    padding = PSS(MGF1(SHA384()), PSS.DIGEST_LENGTH)
    by = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(1)).sign(key, SHA384())
    builder = x509.CertificateRevocationListBuilder(name, now, now + timedelta(1))
    while (made := builder.sign(key, SHA384(), rsa_padding=padding)).signature[-1] % 2:
        pass
    changed = bytearray(made.public_bytes(Encoding.DER))
    changed[-len(made.signature) - 1] = 1
    assert revocations_issued(made, by) and not revocations_issued(x509.load_der_x509_crl(bytes(changed)), by)
