"""The node's gate: a token is taken once, when the disk has it."""

import asyncio
from pathlib import Path

import pytest

from cloister.access.cloud import Cloud, CloudNode
from cloister.access.spent import SpentTokens
from cloister.access.token_keys import TokenKey, TokenKeys
from cloister.config import GatewaySettings
from cloister.controller import token_gate
from cloister.controller.token_gate import TokenGate
from cloister.errors import CloisterError, QueueFull, ServiceUnavailable, SetupError, TokenInvalid, TokenSpent
from tests.access.vectors import CHALLENGE, SIGNER, new_token

KEYS = TokenKeys(CHALLENGE.issuer, "/token-request", [TokenKey(SIGNER.public, 100, 200)])


class Clock:
    now = 150.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def settings(tmp_path: Path) -> GatewaySettings:
    path = tmp_path / "cloud.json"
    path.write_bytes(Cloud((CloudNode("one", "https://one.example"),), KEYS).encode())
    return GatewaySettings(cloud=path, node_name="one", spent=tmp_path / "spent")


async def settled(gate: TokenGate, *tokens: bytes) -> list[CloisterError | None]:
    futures: list[asyncio.Future[CloisterError | None]] = []
    for token in tokens:
        future: asyncio.Future[CloisterError | None] = asyncio.get_running_loop().create_future()
        futures.append(future)
        gate.settle(token, future.set_result)
    return await asyncio.gather(*futures)


async def test_many_at_once_are_taken_once_each(settings: GatewaySettings) -> None:
    gate = TokenGate(settings, Clock())
    tokens = [new_token().encode() for _ in range(3)]
    outcome = await settled(gate, *tokens, *tokens)
    assert outcome[:3] == [None] * 3 and all(isinstance(each, TokenSpent) for each in outcome[3:])
    await gate.close()
    [again] = await settled(TokenGate(settings, Clock()), tokens[0])
    assert isinstance(again, TokenSpent)


async def test_a_token_that_does_not_count_is_refused_and_not_written(settings: GatewaySettings) -> None:
    clock = Clock()
    gate = TokenGate(settings, clock)
    token = new_token().encode()
    forged = token[:-1] + bytes([token[-1] ^ 1])
    clock.now = 300
    [late] = await settled(gate, token)
    clock.now = 150
    outcome = [late, *await settled(gate, forged, b"", b"x" * 354)]
    assert all(isinstance(each, TokenInvalid) for each in outcome)
    assert await settled(gate, token) == [None]


async def test_where_the_disk_fails_no_call_is_served(
    settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = TokenGate(settings, Clock())

    def failing(self: SpentTokens, tokens: object) -> object:
        raise SetupError("A spent token cannot be written down: No space left on device.")

    monkeypatch.setattr(SpentTokens, "spend", failing)
    outcome = await settled(gate, new_token().encode(), new_token().encode())
    assert all(isinstance(each, ServiceUnavailable) for each in outcome)


async def test_a_failure_that_was_not_foreseen_leaves_no_call_waiting(
    settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = TokenGate(settings, Clock())

    def failing(self: SpentTokens, tokens: object) -> object:
        raise MemoryError

    monkeypatch.setattr(SpentTokens, "spend", failing)
    [refused] = await settled(gate, new_token().encode())
    assert isinstance(refused, ServiceUnavailable)
    monkeypatch.undo()
    assert await settled(gate, new_token().encode()) == [None]


async def test_too_many_that_wait_are_refused(settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_gate, "MOST_WAITING", 2)
    gate = TokenGate(settings, Clock())
    outcome = await settled(gate, *(new_token().encode() for _ in range(3)))
    assert outcome[:2] == [None, None] and isinstance(outcome[2], QueueFull)


async def test_a_node_without_a_cloud_takes_none(tmp_path: Path) -> None:
    [refused] = await settled(TokenGate(GatewaySettings(spent=tmp_path)), new_token().encode())
    assert isinstance(refused, TokenInvalid)
