"""The server under TLS: connections count before the handshake, which has an end; a certificate changes meanwhile."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from cloister.certificate import ServerTls, read_certificate
from cloister.config import GatewaySettings
from cloister.errors import SetupError
from cloister.gateway import server as module
from cloister.gateway.server import TlsConnection, _Server, serve
from tests.certificates import settings_of, write_pair
from tests.gateway.test_connection import GET, answer, app, connected

ASKED = GET + b"\r\n"


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, tls: ServerTls, settings: GatewaySettings) -> AsyncIterator[int]:
    servers: list[_Server] = []
    monkeypatch.setattr(_Server, "capture_signals", lambda self: (servers.append(self), nullcontext())[1])
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, settings, url.set_result, tls))
    assert (await url).startswith("https://127.0.0.1:")
    yield int(url.result().rsplit(":", 1)[1])
    servers[0].should_exit = True
    await task


def shown(folder: Path, tls: ServerTls, name: str = "one") -> ssl.SSLContext:
    """Show a new certificate; a client's context that trusts it and no other."""
    certificate = read_certificate(write_pair(folder, name))
    assert certificate
    tls.show(certificate)
    return ssl.create_default_context(cadata=certificate.chain.decode())


async def greeted(port: int, context: ssl.SSLContext) -> Any:
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def test_new_connections_are_shown_the_new_certificate_and_old_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ServerTls()
    first = shown(tmp_path, tls)
    async with serving(monkeypatch, tls, settings_of(tmp_path)) as port:
        old = await greeted(port, first)
        second = shown(tmp_path, tls, "two")
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeted(port, first)
        new = await greeted(port, second)
        for streams in (old, new):
            streams[1].write(ASKED)
            assert await answer(streams) == (200, None)
            streams[1].close()


async def test_connections_count_before_their_handshake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is silent makes place for another; those that speak stay."""
    tls = ServerTls()
    context = shown(tmp_path, tls)
    async with serving(monkeypatch, tls, settings_of(tmp_path, max_connections=2)) as port:
        kept = await greeted(port, context)
        kept[1].write(ASKED)
        assert await answer(kept) == (200, None)
        silent = await connected(port)
        new = await greeted(port, context)
        assert await asyncio.wait_for(silent[0].read(), 10) == b""
        new[1].write(ASKED)
        assert await answer(new) == (200, None)
        kept[1].write(ASKED)
        assert await answer(kept) == (200, None)
        for streams in (kept, new):
            streams[1].close()


async def test_a_handshake_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.2)
    tls = ServerTls()
    shown(tmp_path, tls)
    made: list[TlsConnection] = []
    monkeypatch.setattr(TlsConnection, "_start_handshake", _noted(made))
    async with serving(monkeypatch, tls, settings_of(tmp_path)) as port:
        for said in (b"", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\n\r\n"):
            streams = await connected(port, said)
            await asyncio.wait_for(streams[0].read(), 10)
            streams[1].close()
        for _ in range(100):
            if not made[0]._connection.limits.open:
                break
            await asyncio.sleep(0.05)
        limits = made[0]._connection.limits
        assert len(made) == 3 and not limits.open and not limits.silent and not limits.of_address


def _noted(made: list[TlsConnection]) -> Any:
    start = TlsConnection._start_handshake  # type: ignore[attr-defined]

    def begun(self: TlsConnection) -> None:
        made.append(self)
        start(self)

    return begun


async def test_a_server_that_should_show_a_certificate_and_has_none_does_not_start(tmp_path: Path) -> None:
    for settings, tls in ((settings_of(tmp_path), None), (GatewaySettings(port=0), ServerTls())):
        with pytest.raises(SetupError, match="certificate"):
            await serve(app, settings, print, tls)
