"""TLS as the client's connections use it, all alike. It hides who asks from the network; trust does not rest on it."""

from __future__ import annotations

import ssl

import httpx2

from cloister.client.address import NodeAddress


def tls_to(address: NodeAddress) -> ssl.SSLContext:
    """The context for https; for http one that trusts nobody, which is cheap to make and of no use by mistake."""
    if address.scheme == "https":
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
