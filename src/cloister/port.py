"""The port to listen on: checked and reserved before a model is loaded."""

import socket

from cloister.config import GatewaySettings
from cloister.errors import SetupError


def reserve_port(settings: GatewaySettings) -> int | None:
    """The descriptor of a socket that the listening process inherits; None for any port."""
    if not settings.port:
        return None
    bind(settings).close()  # SetupError if another process listens there
    try:
        kept = bind(settings, shared=False)
    except SetupError:
        return None  # connections of an earlier server linger: the gateway can listen all the same
    kept.set_inheritable(True)
    return kept.detach()


def bind(settings: GatewaySettings, *, shared: bool = True) -> socket.socket:
    """One that is not `shared` keeps other processes away even before it listens."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as wrong:
        message = f"Cannot listen on {settings.host} port {settings.port}: {wrong.strerror}."
        raise SetupError(message, hint="Choose another with --port (0 takes any free one) or --host.") from None
    return listener
