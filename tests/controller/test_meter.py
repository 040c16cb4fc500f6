"""Every call is counted once, whatever end it takes, and holds its tenant's quota until then."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloister.controller.meter import TOKENS, Meter
from cloister.errors import CloisterError, SetupError
from cloister.messages.controller_frontend import KeyEntry, SubmitTokens
from cloister.messages.controller_service import GeneratePartitioned, GeneratePrompt
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.types import ExtraAnswer, SamplingParams
from cloister.usage import Counts, read_usage
from tests.controller.fakes import SERVING, Inbox, Node

PARAMS = SamplingParams(max_tokens=8)
KEYS = (KeyEntry(bytes(32), "ann"), KeyEntry(bytes(32), "bob", tokens_a_day=50))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = await Node.build(spare_vaults=0, usage=tmp_path / "usage.sqlite", tokens_a_day=1000, max_vaults=1)
    node.relay.admit(KEYS)
    yield node
    node.close()


async def rows(node: Node, tmp_path: Path) -> dict[tuple[str, str], Counts]:
    assert not node.relay.meter._calls, "all have ended"
    accounts = node.relay.meter.quotas._accounts.values()
    assert not any(one.reserved or one.under_way for one in accounts)
    await node.relay.meter.books.write()
    return {(place.tenant, place.level): counts for place, counts in read_usage(tmp_path / "usage.sqlite")}


async def test_what_is_served_counts_once_with_its_prompt(node: Node, tmp_path: Path) -> None:
    node.send(SubmitTokens(5, "ann", (1, 2, 3), PARAMS, also=(ExtraAnswer(6, 1), ExtraAnswer(7, 2))))
    for _ in range(3):
        order = await node.service.next(GeneratePrompt)
        node.service.say(Accepted(order.request_id), Tokens(order.request_id, (4, 5), finish="stop"))
        await node.frontend.next(Tokens, skip=(Accepted,))
    node.ask(8)
    await (await node.vault(0)).serve_first(7)
    order = await node.service.next(GeneratePartitioned)
    node.service.say(Accepted(order.request_id), Tokens(order.request_id, (8, 9), finish="length"))
    while (await node.frontend.next(Tokens, skip=(Accepted,))).finish is None:
        pass
    served = {("ann", "open"): Counts(1, 0, 3, 6), ("ann", "partitioned"): Counts(1, 0, 40, 3)}
    assert await rows(node, tmp_path) == served
    account = node.relay.meter.quotas._account("ann")
    assert (account.tokens, account.requests) == (52, 2)


async def test_an_embedding_counts_its_prompt_and_holds_no_more(node: Node, tmp_path: Path) -> None:
    embed, vector = SamplingParams(max_tokens=0, embed=True), struct.pack("<2f", 0.6, 0.8)
    node.send(SubmitTokens(5, "bob", (1,) * 50, embed))  # all of the quota
    order = await node.service.next(GeneratePrompt)
    node.service.say(Accepted(order.request_id), Tokens(order.request_id, finish="length", vector=vector))
    await node.frontend.next(Tokens, skip=(Accepted,))
    node.ask(6, params=embed)
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(PromptAccepted(asked.request_id, 40), Tokens(asked.request_id, finish="length", vector=vector))
    await node.frontend.next(Tokens, skip=(Accepted,))
    node.send(SubmitTokens(7, "bob", (1,), embed))
    assert (await node.frontend.next(Failed)).code == "insufficient_quota"
    counted = {("bob", "open"): Counts(1, 1, 50), ("ann", "partitioned"): Counts(1, 0, 40)}
    assert await rows(node, tmp_path) == counted


async def test_what_ends_early_counts_as_far_as_it_came(node: Node, tmp_path: Path) -> None:
    node.send(SubmitTokens(5, "ann", (1, 2, 3), PARAMS))
    order = await node.service.next(GeneratePrompt)
    node.service.say(Accepted(order.request_id), Tokens(order.request_id, (4,)))
    await node.frontend.next(Tokens, skip=(Accepted,))
    node.send(Cancel(5))
    node.ask(6, "one", keep=True)
    await (await node.vault(0)).next(AssignPrompt)
    node.ask(7, "two", tenant="bob")  # it waits: there is one vault
    node.send(Cancel(7))
    node.send(Cancel(6))  # its prompt was not read
    counted = {
        ("ann", "open"): Counts(1, 0, 3, 1),
        ("ann", "partitioned"): Counts(1),
        ("bob", "partitioned"): Counts(1),
    }
    assert await rows(node, tmp_path) == counted


async def test_what_is_refused_takes_no_quota(node: Node, tmp_path: Path) -> None:
    node.send(SubmitTokens(5, "bob", (1,) * 43, PARAMS))  # 51 of 50
    refused = await node.frontend.next(Failed)
    assert refused.code == "insufficient_quota" and refused.quota == {"tokens": (50, 50)} and refused.retry_after > 0
    node.send(SubmitTokens(6, "bob", (1, 2), PARAMS))
    order = await node.service.next(GeneratePrompt)
    node.service.say(failed(order.request_id, CloisterError("The service is full.")))
    await node.frontend.next(Failed)
    node.relay.service_gone()
    node.send(SubmitTokens(7, "bob", (1, 2), PARAMS))
    assert (await node.frontend.next(Failed)).code == "service_unavailable"
    assert await rows(node, tmp_path) == {("bob", "open"): Counts(0, 3)}
    assert node.relay.meter.quotas._account("bob").requests == 0


async def test_a_prompt_that_proves_too_long_goes_no_further(node: Node, tmp_path: Path) -> None:
    """Six bytes seem six tokens at most; the vault reads 40 of them, with its template, and more in the second."""
    for number, tokens, is_read in ((5, 40, True), (6, 43, False)):
        node.ask(number, f"session {number}", tenant="bob")
        vault = await node.vault(number - 5)
        asked = await vault.next(AssignPrompt)
        vault.say(PromptAccepted(asked.request_id, tokens))
        if is_read:
            assert (await node.frontend.next(Accepted)).prompt_tokens == tokens
            assert node.relay.meter.quotas._account("bob").reserved == 48
            node.send(Cancel(number))
            node.relay.meter.quotas._account("bob").tokens = 0
        else:
            assert (await node.frontend.next(Failed)).code == "insufficient_quota"
            assert (await vault.next(Cancel)).request_id == asked.request_id
    assert await rows(node, tmp_path) == {("bob", "partitioned"): Counts(1, 1, 40, 0)}


async def test_a_frontend_that_ends_leaves_nothing_reserved(node: Node, tmp_path: Path) -> None:
    other = node.add_gateway(Inbox())
    ask: Any = node.relay.from_frontend
    ask(other, SubmitTokens(5, "ann", (1, 2), PARAMS))
    node.ask(6, "one", tenant="bob", keep=True)
    await (await node.vault(0)).next(AssignPrompt)
    node.ask(7, "two")  # it waits
    for number in (other, node.gateway):
        node.relay.remove_frontend(number)
    found = await rows(node, tmp_path)
    assert {key: counts.requests for key, counts in found.items()} == {
        ("ann", "open"): 1,
        ("bob", "partitioned"): 1,
        ("ann", "partitioned"): 1,
    }


async def test_calls_of_tokens_are_one_row_and_have_no_quota(node: Node, tmp_path: Path) -> None:
    for number in range(3):
        node.send(SubmitTokens(number, f"token-{number:032x}", (1,) * 400, PARAMS))
        order = await node.service.next(GeneratePrompt, skip=(object,))
        node.service.say(Accepted(order.request_id), Tokens(order.request_id, (4,), finish="stop"))
        await node.frontend.next(Tokens, skip=(Accepted,))
    assert await rows(node, tmp_path) == {(TOKENS, "all"): Counts(3, 0, 1200, 3)}
    assert "token-" not in (tmp_path / "usage.sqlite").read_bytes().decode("latin-1")


async def test_the_file_opens_with_the_first_quota_and_else_only_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    node = Node()
    meter: Meter = node.relay.meter
    meter.admit(KEYS[:1])
    assert not meter.books.open and not list(tmp_path.iterdir())
    meter.admit(KEYS)
    assert meter.books.open and (tmp_path / "usage.sqlite").exists()
    (tmp_path / "wrong").write_text("no database" * 99)
    first = Node(usage=tmp_path / "wrong").relay.meter
    with pytest.raises(SetupError):
        first.admit(KEYS)
    first.admit(KEYS)  # read again later: the node goes on
    assert "Usage is not counted" in caplog.text and SERVING.max_context == 512
    first.begin(SubmitTokens(1, "bob", (1,) * 30, PARAMS), 30)
    with pytest.raises(CloisterError, match="your 50 for today"):
        first.begin(SubmitTokens(2, "bob", (1,) * 30, PARAMS), 30)
