"""Three parties as three processes: what a client deals and gets back, and what each role may do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from cloister.errors import CloisterError, InvalidRequest, ProtocolError, Unauthorized
from cloister.messages.mpc import AskShelf, Complete, Open, Prepare, Put, Run, ShareHead, Terms
from cloister.mpc.local import make_keys

pytest.importorskip("spu", reason="SPU is not installed: pip install '.[mpc]'")

from cloister.mpc.parties import Parties
from cloister.mpc.twin import PlainModel
from tests.mpc.trio import PLAN, PROMPT, SHAPE, connected, tokens, weights

if TYPE_CHECKING:
    from tests.mpc.trio import Trio


async def test_a_generation_is_the_plain_models(trio: Trio) -> None:
    """Prefill and steps through three processes, the cache in shares between them."""
    told: list[int] = []
    await connected(trio, 90)
    passes = await trio.model.open(len(PROMPT), 8, "logits", told.append)
    plain = PlainModel(SHAPE, weights()).generation(PLAN, len(PROMPT), 8)
    expected = plain.prefill(PROMPT)
    found = await passes.prefill(PROMPT, None)
    assert found.shape == (SHAPE.vocabulary, 1)
    np.testing.assert_allclose(np.asarray(found)[:, 0], np.asarray(expected).reshape(-1), atol=0.02)
    found = await passes.step(0, (7, 9), None)
    forced = PlainModel(SHAPE, weights()).teacher_forced((*PROMPT, 7, 9))
    np.testing.assert_allclose(np.asarray(found), forced[-2:].T, atol=0.02)
    assert told[-1] == SHAPE.layers
    await passes.close()
    await trio.model.close()


async def test_two_clients_at_once_do_not_disturb_each_other(trio: Trio) -> None:
    alone = await tokens(await trio.opened(), 3)
    together = await asyncio.gather(*(_answer(trio) for _ in range(2)))
    assert together == [alone, alone]
    await trio.model.close()


async def _answer(trio: Trio) -> list[int]:
    passes = await trio.opened()
    try:
        return await tokens(passes, 3)
    finally:
        await passes.close()


async def test_weights_that_all_parties_hold_are_not_dealt_again(trio: Trio) -> None:
    told = await trio.deal()
    assert len(told) == 7 and not any(dealt for _, dealt in told)


async def test_each_party_is_a_process_of_its_own_that_leaves_no_dump(trio: Trio) -> None:
    await connected(trio, 90)
    await trio.model.close()
    for rank in range(3):
        for process in (trio.party(rank), trio.child(rank, "engine"), trio.child(rank, "tunnel")):
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
            assert psutil.Process(process.pid).environ().keys() <= ALLOWED
    assert len({trio.child(rank, "engine").pid for rank in range(3)}) == 3


ALLOWED = {
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "CC"),
    *("CLOISTER_STATE", "CLOISTER_CACHE", "CLOISTER_SHARED", "OMP_NUM_THREADS", "JAX_PLATFORMS"),
    *("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
}


async def test_a_provider_may_not_open_generations_nor_a_client_deal_weights(trio: Trio) -> None:
    for own, message in (
        (trio.keys.provider, Open(b"s" * 16, Terms(16, 2))),
        (trio.keys.client(), AskShelf()),
        (trio.keys.client(), Complete("mine", b"{}", ("w/a",))),
    ):
        parties = await Parties.connect(trio.config, own)
        parties.post(message)
        with pytest.raises(Unauthorized, match="may not say"):
            await parties.next(0, Open)
        await parties.close()


async def test_foreign_keys_get_nowhere(trio: Trio, tmp_path: Path) -> None:
    foreign = make_keys(tmp_path / "foreign", 3)
    with pytest.raises(CloisterError) as refused:
        await Parties.connect(trio.config, foreign.client())
    assert refused.value.code in ("invalid_api_key", "party_lost")


async def test_a_client_cannot_speak_as_a_party(trio: Trio) -> None:
    parties = await trio.as_client()
    parties.post(Prepare(9, b"k" * 16))
    with pytest.raises(ProtocolError):
        await parties.next(0, Open)
    await parties.close()
    await (await trio.opened()).close()
    await trio.model.close()


@pytest.mark.parametrize(
    "terms",
    [
        Terms(17, 2),  # not a bucket
        Terms(16, 2, b"{"),
        Terms(16, 2, b'{"method": "mine"}'),
    ],
)
async def test_terms_that_make_no_sense_are_refused_and_the_parties_go_on(trio: Trio, terms: Terms) -> None:
    await connected(trio, 90)
    parties = await trio.as_client()
    before = (await parties.status())[0].epoch
    with pytest.raises(InvalidRequest):
        await parties.open(terms)
    after = (await parties.status())[0]
    assert after.ready and after.epoch == before and after.sessions == 0
    await parties.close()
    await trio.model.close()


@pytest.mark.parametrize(
    "dealt",
    [
        {},
        {"coarse": (2, 16), "fine": (256, 15)},
        {"coarse": (2, 16), "fine": (256, 16), "hidden": (8, 16)},
        {"coarse": (2, 16), "fine": (256, 16), "0/cache/keys": (1, 16, 4)},
    ],
    ids=["nothing", "another shape", "what parties compute", "a cache"],
)
async def test_a_pass_is_dealt_what_it_needs_and_nothing_else(trio: Trio, dealt: dict[str, tuple[int, ...]]) -> None:
    await connected(trio, 90)
    parties = await trio.as_client()
    session = await parties.open(Terms(16, 2, b'{"method": "full"}'))
    for name, dims in dealt.items():
        await session.deal(name, np.zeros(dims, np.int32))
    with pytest.raises(InvalidRequest, match="not what this pass needs"):
        await session.prefill()
    assert all(each.ready for each in await parties.status())
    await parties.close()
    await trio.model.close()


async def test_another_connection_cannot_go_on_with_a_session(trio: Trio) -> None:
    """Not even one of the same client: a session belongs to the connection that opened it."""
    await connected(trio, 90)
    owner, thief = await trio.as_client(), await trio.as_client()
    session = await owner.open(Terms(16, 2, b'{"method": "full"}'))
    name = session._name
    thief._inboxes[name] = tuple(asyncio.Queue() for _ in thief.lines)
    for message in (Put(name, ShareHead("coarse", "int32", (2, 16))), Run(name, 0, "prefill")):
        thief.post(message)
        with pytest.raises(InvalidRequest, match="no such session"):
            await thief.next(0, Run, name)
    assert all(each.sessions == 1 for each in await owner.status())
    for parties in (owner, thief):
        await parties.close()
    await trio.model.close()


async def test_nothing_a_user_said_is_in_the_parties_logs(trio: Trio) -> None:
    await tokens(await trio.opened(), 1)
    await trio.model.close()
    for rank in range(3):
        lines = trio.log(rank).splitlines()
        assert lines and all(line.startswith(f"party {rank}: ") for line in lines)
