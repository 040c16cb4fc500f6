"""The node's own TLS certificate and key: the controller reads and checks them, the process that listens shows them.
No promise leans on it: sealed requests stay sealed wherever TLS ends."""

import os
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from cloister.config import GatewaySettings
from cloister.errors import SetupError
from cloister.files import read_bounded, read_private
from cloister.messages.controller_gateway import MAX_CHAIN_BYTES, MAX_KEY_BYTES, TlsCertificate

_OP_CLEANSE_PLAINTEXT = 0x2  # OpenSSL 3: what was handed to us is overwritten in OpenSSL's buffer; `ssl` has no name
_HOW = "Name PEM files: the certificate with those between it and its root, and its key without a passphrase."


def read_certificate(settings: GatewaySettings) -> TlsCertificate | None:
    """SetupError unless the certificate counts today and the key is its key. In what is returned nothing else is."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        chain = x509.load_pem_x509_certificates(read_bounded(settings.tls_cert, MAX_CHAIN_BYTES, hint=_HOW))
        shown = chain[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise SetupError(f"{settings.tls_cert} is no certificate in PEM.", hint=_HOW) from None
    content = read_private(settings.tls_key, MAX_KEY_BYTES + 1, "TLS key")
    try:
        key = load_pem_private_key(content[:MAX_KEY_BYTES], None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        raise SetupError(f"{settings.tls_key} is no key in PEM that can be read.", hint=_HOW) from None
    if key.public_key() != shown:
        hint = "Name the two files that belong together."
        raise SetupError(f"{settings.tls_key} is not the key of {settings.tls_cert}.", hint=hint)
    if not chain[0].not_valid_before_utc <= datetime.now(UTC) <= chain[0].not_valid_after_utc:
        hint = "Get a new one, or set this machine's clock."
        raise SetupError(f"{settings.tls_cert} counts only {_days(chain[0])}.", hint=hint)
    public = b"".join(each.public_bytes(Encoding.PEM) for each in chain)
    made = TlsCertificate(public, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    try:
        ServerTls().show(made)
    except ssl.SSLError as reason:
        words = f"OpenSSL does not take {settings.tls_cert}: {reason.reason or 'no reason given'}."
        raise SetupError(words, hint="Use a key on P-256 or Ed25519, or RSA of 2048 bits or more.") from None
    return made


def last_day(certificate: TlsCertificate) -> str:
    """As 2030-12-31."""
    return f"{x509.load_pem_x509_certificate(certificate.chain).not_valid_after_utc:%Y-%m-%d}"


def _days(certificate: x509.Certificate) -> str:
    return f"from {certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}"


class ServerTls:
    """What new connections are greeted with. `ssl` reads keys from files only, and a confined process can make none:
    so this one in memory is made before, and is empty except while a certificate is taken."""

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self._file = os.memfd_create("cloister-certificate", os.MFD_CLOEXEC)

    def show(self, certificate: TlsCertificate) -> None:
        """ssl.SSLError leaves the one before. A new context each time: one keeps a certificate for each kind of key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | _OP_CLEANSE_PLAINTEXT
        context.num_tickets = 0  # a ticket would tell that two connections are one user's
        context.set_alpn_protocols(["http/1.1"])
        content = certificate.chain + certificate.key
        os.pwrite(self._file, content, 0)
        try:
            context.load_cert_chain(f"/proc/self/fd/{self._file}")
        finally:
            os.pwrite(self._file, bytes(len(content)), 0)
            os.ftruncate(self._file, 0)
        self.context = context

    def __del__(self) -> None:
        os.close(self._file)
