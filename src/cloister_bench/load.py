"""Closed-loop users: each sends its next request when its last has ended. Knows one server by its address only."""

import asyncio
from collections import Counter
from contextlib import suppress
from secrets import token_hex
from typing import Any

import msgspec

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError, ServiceUnavailable, SetupError, Unauthorized
from cloister_bench.connection import Connection, Exchange, get
from cloister_bench.messages import Answer, BrokenAnswer, Endpoint, Workload, read_answer
from cloister_bench.report import RunReport, summarise

PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
GOODBYE_S = 5.0
NOT_OPENAI_HINT = "Give the address of an OpenAI-compatible server, such as one started with `cloister serve`."


async def first_model(address: HttpAddress, api_key: str | None, timeout_s: float = 10.0) -> dict[str, Any]:
    """As the server lists it. Raises an error a user can act on when there is no such server."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await get(address, "/v1/models", api_key)
    except TimeoutError:
        raise ServiceUnavailable(
            f"{address} did not answer within {timeout_s:g} s.", hint="Is it the right port?"
        ) from None
    except OSError:
        raise ServiceUnavailable(
            f"Nothing answers at {address}.", hint="Start a server with `cloister serve`, or check its address."
        ) from None
    except ProtocolError as wrong:
        raise SetupError(f"{address}: {wrong.message}", hint=NOT_OPENAI_HINT) from None
    if answer.status in (401, 403):
        raise Unauthorized(f"{address} refuses the API key.", hint="Set CLOISTER_API_KEY or give --api-key.")
    try:
        listing: dict[str, Any] = msgspec.json.decode(answer.body, type=dict[str, Any])
        return {**listing["data"][0], "id": str(listing["data"][0]["id"])}
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
        raise SetupError(
            f"{address} does not list its models as OpenAI's API does (HTTP {answer.status}).", hint=NOT_OPENAI_HINT
        ) from None


class User:
    def __init__(self, address: HttpAddress, api_key: str | None, load: Workload) -> None:
        self._address = address
        self._api_key = api_key
        self._path = PATHS[load.endpoint]
        self._timeout_s = load.timeout_s
        self._connection: Connection | None = None

    async def ask(self, body: bytes) -> Answer:
        """Raises BrokenAnswer with the kind of failure, and nothing else."""
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange = await self._exchange(body)
        except TimeoutError:
            raise BrokenAnswer("timeout") from None
        except OSError:
            raise BrokenAnswer("connection") from None
        except ProtocolError:
            raise BrokenAnswer("not HTTP") from None
        if exchange.status != 200:
            raise BrokenAnswer(f"HTTP {exchange.status}")
        return read_answer(exchange.sent, exchange.arrivals)

    async def leave(self, session: str | None = None) -> None:
        if self._connection is None:
            return
        if session is not None and self._connection.usable:
            with suppress(OSError, ProtocolError, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._connection.exchange("DELETE", f"/v1/sessions/{session}")
        self._connection.close()

    async def _exchange(self, body: bytes) -> Exchange:
        if self._connection is None or not self._connection.usable:
            self._connection = await Connection.open(self._address, self._api_key)
        return await self._connection.exchange("POST", self._path, body)


async def measure(
    address: HttpAddress,
    api_key: str | None,
    model: str,
    load: Workload,
    users: int,
) -> RunReport:
    crowd = [User(address, api_key, load) for _ in range(users)]
    name = f"bench-{token_hex(6)}"
    sessions = [f"{name}-{number}" if load.sessions else None for number in range(users)]
    answers: list[Answer] = []
    errors: Counter[str] = Counter()

    async def ask_in_turn(number: int, phase: str, requests: int) -> None:
        for turn in range(requests):
            try:
                body = load.request(model, sessions[number], users, phase, number, turn)
                answers.append(await crowd[number].ask(body))
            except BrokenAnswer as broken:
                errors[broken.kind] += 1
                if broken.kind == "timeout":
                    return  # the next would most likely wait as long

    try:
        await asyncio.gather(*(ask_in_turn(number, "warmup", load.warmup) for number in range(users)))
        answers.clear()
        errors.clear()
        await asyncio.gather(*(ask_in_turn(number, "run", load.requests_per_user) for number in range(users)))
        return summarise(users, answers, errors, load.output_tokens)
    finally:
        await asyncio.gather(*(user.leave(session) for user, session in zip(crowd, sessions, strict=True)))
