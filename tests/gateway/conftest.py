"""A gateway over the fake backend, in process or under uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI

from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, served


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def settings() -> GatewaySettings:
    return GatewaySettings(max_body_bytes=64 * 1024, request_timeout_s=60)


@pytest.fixture
def app(backend: FakeBackend, settings: GatewaySettings) -> FastAPI:
    return create_app(backend, ByteTokenizer(), MODEL, settings, created=1_700_000_000)


@pytest.fixture
def level() -> str | None:
    """The level `http` asks for; a module that is to hold at every level parametrises it."""
    return None


@pytest.fixture
async def http(app: FastAPI, level: str | None) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5), raise_app_exceptions=True)
    headers = KEY if level is None else {**KEY, "X-Cloister-Protection": level}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    with served(app) as address:
        yield address
