"""A real vault host behind a real controller: what vaults on another machine say is what `open` says, and they end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace

from cloister.attest.node import verify_node
from cloister.attest.policy import Policy
from cloister.backend.base import OpenJob, VaultJob
from cloister.errors import ServiceUnavailable, VaultLost
from cloister.link.network.address import Address
from cloister.link.network.credentials import credentials_from, read_secret, write_secret
from cloister.link.network.tls import establish
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.controller.node import ENGINE as HERE
from tests.controller.node import RealNode, private
from tests.link.bridges import wait_until
from tests.link.strangers import closes, strangers
from tests.served import lives
from tests.vault_host.host_process import HostProcess, Wiretap, runs
from tests.vault_host.soak import soak

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

TEXT = "Forty bytes of text, more or less, are it"
CANARY = "canary-7f3a-words-that-must-not-be-seen"
GREEDY = SamplingParams(max_tokens=12, temperature=0)
ENDLESS = SamplingParams(max_tokens=400, temperature=0)
PATIENT = HERE.model_copy(update={"link_deadline_ms": 10_000})  # the machine may be busy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tiny: ModelFolder, key: Path, vault_host: HostProcess) -> AsyncIterator[RealNode]:
    node = await RealNode.start(tiny, PATIENT, spare_vaults=1, vault_host=vault_host.address(), vault_host_key=key)
    yield node
    await node.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tapped(tiny: ModelFolder, key: Path, vault_host: HostProcess) -> AsyncIterator[tuple[RealNode, Wiretap]]:
    """A server without spare vaults, which verifies, and who listens on its line."""
    tap = Wiretap(vault_host.address())
    node = await RealNode.start(tiny, PATIENT, spare_vaults=0, verify="all", vault_host=tap.address, vault_host_key=key)
    yield node, tap
    await node.close()
    tap.close()


async def answer(node: RealNode, job: OpenJob | VaultJob, params: SamplingParams = GREEDY) -> list[int]:
    stream = await node.client.generate("tenant", job, params)
    return [token async for part in stream for token in part.tokens]


def opened(folder: ModelFolder, text: str) -> OpenJob:
    return OpenJob(tuple(Tokenizer(folder).encode(text, True)))


async def test_a_remote_vault_verifies_what_the_service_claims(
    tapped: tuple[RealNode, Wiretap], node: RealNode
) -> None:
    verifying, _ = tapped
    long = SamplingParams(max_tokens=40, temperature=0.8, seed=3)
    assert await answer(verifying, private(TEXT, "v"), long) == await answer(node, private(TEXT, "v"), long)


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
async def test_what_a_remote_vault_says_is_what_open_says(node: RealNode, tiny: ModelFolder, level: str) -> None:
    texts = [TEXT[: 5 + 9 * n] + str(n) for n in range(4)]
    plain = [await answer(node, opened(tiny, text)) for text in texts]
    assert all(len(one) == 12 for one in plain)
    assert [await answer(node, private(text, str(n), level=level)) for n, text in enumerate(texts)] == plain
    together = await asyncio.gather(*(answer(node, private(t, f"b{n}", level=level)) for n, t in enumerate(texts)))
    assert together == plain


async def test_the_nodes_evidence_brings_the_vault_hosts_own_along(node: RealNode, vault_host: HostProcess) -> None:
    nonce = os.urandom(32)
    evidence = await node.controller.evidence_maker.evidence(nonce)
    policy = Policy(allow_software_tee=True)
    verdict = verify_node(evidence, nonce, at=datetime.now(UTC), policy=policy)
    assert verdict.passed, verdict.broken
    (told,) = verdict.claims["vault_hosts"]
    assert (told["address"], told["state"]) == (vault_host.address(), "verified")
    alone = verify_node(replace(evidence, vault_hosts=()), nonce, at=datetime.now(UTC), policy=policy)
    assert [check.name for check in alone.broken] == ["vault hosts"], "without it nobody is sent there"
    node.controller._vault_host_changed()
    again = await node.controller.evidence_maker.evidence(nonce)
    assert again.channel_key != evidence.channel_key, "who verified the node verifies it anew"


async def test_a_kept_session_stays_in_its_vault_and_ends_with_it(node: RealNode, vault_host: HostProcess) -> None:
    first = await answer(node, private(TEXT, "kept", keep=True))
    before = {one.pid for one in vault_host.bridges()}
    assert await answer(node, private(TEXT, "kept", keep=True)) == first
    assert before & {one.pid for one in vault_host.bridges()}
    await node.client.end_session("tenant", "kept")
    await all_but_the_spare_one_end(vault_host)


async def all_but_the_spare_one_end(vault_host: HostProcess) -> None:
    """The controller works in this very loop."""
    async with asyncio.timeout(120):
        while len(vault_host.bridges()) > 1:
            await asyncio.sleep(0.05)


async def test_eight_users_lose_no_vault(node: RealNode, tiny: ModelFolder, vault_host: HostProcess) -> None:
    found = await soak(node, tiny, seconds=2)
    assert found.wrong == []
    await all_but_the_spare_one_end(vault_host)


def of_another_server(process: psutil.Process) -> bool:
    """Whether it belongs to a server that other tests share; this file's controller is the test's own process."""
    return any(runs(above, "cloister.controller") for above in process.parents())


async def test_no_vault_runs_beside_the_service(node: RealNode, vault_host: HostProcess) -> None:
    stream = await node.client.generate("tenant", private(TEXT, "where"), ENDLESS)
    await anext(stream)
    there = set(vault_host.children())
    here = [one for one in psutil.Process().children(recursive=True) if one not in there]
    own = sorted(one.name() for one in here if one.name().startswith("cl-") and not of_another_server(one))
    assert set(own) >= {"cl-forkserver", "cl-keeper", "cl-service"} and "cl-vault" not in own
    await stream.aclose()


async def test_a_remote_vault_that_is_killed_costs_its_own_request(node: RealNode, vault_host: HostProcess) -> None:
    alone = await answer(node, private(TEXT, "other"), ENDLESS)
    before = {one.pid for one in vault_host.bridges()}
    lost = await node.client.generate("tenant", private("Another text", "lost"), ENDLESS)
    await anext(lost)
    spare = {one.pid for one in vault_host.bridges()}
    used = before & spare
    os.kill(used.pop() if used else spare.pop(), signal.SIGKILL)
    with pytest.raises(VaultLost):
        async for _ in lost:
            pass
    assert await answer(node, private(TEXT, "other"), ENDLESS) == alone


async def test_nothing_of_a_prompt_is_on_the_wire(tapped: tuple[RealNode, Wiretap], tiny: ModelFolder) -> None:
    node, tap = tapped
    before = len(tap.heard)
    said = await answer(node, private(CANARY, "a"))
    assert said == await answer(node, opened(tiny, CANARY))
    middle = len(tap.heard)
    assert middle - before > 12 * 1000, "the traffic went through our hands"
    for part in (CANARY, CANARY[:12], CANARY[-12:]):
        assert part.encode() not in tap.heard
    # The same prompt again, on another connection: nothing repeats but what every handshake says, the rehearsal's too.
    await answer(node, private(CANARY, "b"))
    rehearsed, first, second = (
        bytes(part) for part in (tap.heard[:before], tap.heard[before:middle], tap.heard[middle:])
    )
    pieces = (first[at : at + 16] for at in range(0, len(first) - 16, 997))
    assert not any(piece in second and piece not in rehearsed for piece in pieces)


async def test_a_line_that_is_cut_loses_the_vault_on_both_sides(
    tapped: tuple[RealNode, Wiretap], vault_host: HostProcess
) -> None:
    node, tap = tapped
    stream = await node.client.generate("tenant", private(TEXT, "cut"), ENDLESS)
    await anext(stream)
    tap.close()
    with pytest.raises(VaultLost):
        async for _ in stream:
            pass
    with pytest.raises(ServiceUnavailable):
        await answer(node, private(TEXT, "again"))
    wait_until(lambda: len(vault_host.bridges()) <= 1)


async def test_a_server_with_another_key_is_refused_and_says_so(
    tiny: ModelFolder, tmp_path: Path, vault_host: HostProcess, caplog: pytest.LogCaptureFixture
) -> None:
    write_secret(tmp_path / "wrong")
    node = await RealNode.start(
        tiny, spare_vaults=0, vault_host=vault_host.address(), vault_host_key=tmp_path / "wrong"
    )
    vaults = node.controller.relay.vaults
    try:
        await vaults.try_one()
        assert "does not know the key" in str(vaults.trouble)
        with pytest.raises(VaultLost, match="vault host cannot be used"):
            await answer(node, private(TEXT, "a"))
        assert len(await answer(node, opened(tiny, TEXT))) == 12, "what needs no vault works"
    finally:
        await node.close()
    assert caplog.text.count("does not know the key") == 1, "it is said once, however often it is tried"


async def test_a_server_in_another_precision_is_refused(
    tiny: ModelFolder, key: Path, vault_host: HostProcess, caplog: pytest.LogCaptureFixture
) -> None:
    other = HERE.model_copy(update={"dtype": "bf16"})
    node = await RealNode.start(tiny, other, spare_vaults=0, vault_host=vault_host.address(), vault_host_key=key)
    try:
        with pytest.raises(VaultLost):
            await answer(node, private(TEXT, "a"))
    finally:
        await node.close()
    assert "serves another model, or the same in another precision" in caplog.text


async def test_strangers_get_no_process_and_do_not_keep_others_out(node: RealNode, vault_host: HostProcess) -> None:
    first = await answer(node, private(TEXT, "before"))
    wait_until(lambda: len(vault_host.bridges()) <= 2)
    with strangers(Address.parse(vault_host.address())):
        for number in range(3):  # one may be served by the spare vault; the others connect anew
            assert await answer(node, private(TEXT, f"meanwhile {number}")) == first
        assert len(vault_host.bridges()) <= 3, "a stranger got a process"


async def test_who_does_not_prove_itself_in_time_is_dropped(vault_host: HostProcess) -> None:
    with strangers(Address.parse(vault_host.address()), 4) as came:
        for one in came:
            assert await asyncio.to_thread(closes, one)


async def test_who_knows_the_key_and_asks_for_nothing_is_dropped(key: Path, vault_host: HostProcess) -> None:
    connection = Address.parse(vault_host.address()).connect(10)
    await asyncio.to_thread(establish, connection, credentials_from(read_secret(key), "server"), 1000)
    with connection:
        assert await asyncio.to_thread(closes, connection)


async def answered_in_time(node: RealNode, session: str) -> list[int]:
    """Of a node whose vault host may just be coming back."""
    end = time.monotonic() + 240
    while True:
        try:
            return await answer(node, private(TEXT, session))
        except (ServiceUnavailable, VaultLost):
            assert time.monotonic() < end
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("who", ["forkserver", "doorkeeper"])
async def test_what_dies_over_there_comes_back(node: RealNode, vault_host: HostProcess, who: str) -> None:
    before = await answered_in_time(node, "a")
    vault_host.child(who).kill()
    assert await answered_in_time(node, "b") == before


async def test_a_vault_host_that_dies_is_a_typed_error_and_leaves_nothing(
    node: RealNode, tiny: ModelFolder, vault_host: HostProcess
) -> None:
    """The last one: it takes away what the others use."""
    await answered_in_time(node, "a")
    stream = await node.client.generate("tenant", private(TEXT, "a"), ENDLESS)
    await anext(stream)
    processes = vault_host.children()
    assert len(processes) >= 4  # fork server and keeper, bridge, vault
    vault_host.process.kill()
    with pytest.raises(VaultLost):
        async for _ in stream:
            pass
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert not [one for one in alive if lives(one)]
    assert len(await answer(node, opened(tiny, TEXT))) == 12
