"""Three parties as three processes: what a client deals and gets back, and what each role may do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from cloister.errors import CloisterError, InvalidRequest, ProtocolError, Unauthorized
from cloister_mpc.messages import AskWeights, Complete, GenerationSpec, Open, Prepare, Put, Run, ShareHead

pytest.importorskip("spu", reason="SPU is not installed: make mpc")

from cloister_mpc.certificates import make_keys
from cloister_mpc.client.parties import Parties
from cloister_mpc.functions.bundle import LEAN
from cloister_mpc.model import programs
from cloister_mpc.model.decoder import PlainModel
from cloister_mpc.model.program_store import ProgramStore
from tests.cloister_mpc.local import PLAN, PROMPT, SHAPE, connected, tokens, weights
from tests.cloister_mpc.model.plain_generation import PlainGeneration, teacher_forced

if TYPE_CHECKING:
    from tests.cloister_mpc.local import LocalParties


async def test_a_generation_is_the_plain_models(local: LocalParties) -> None:
    """Prefill and steps through three processes, the cache in shares between them."""
    told: list[int] = []
    await connected(local, 90)
    passes = await local.model.open(len(PROMPT), 8, "logits", told.append)
    plain = PlainGeneration(PlainModel(SHAPE, weights(), LEAN), PLAN, len(PROMPT), 8)
    expected = plain.prefill(PROMPT)
    found = await passes.prefill(PROMPT, None)
    assert found.shape == (SHAPE.vocabulary, 1)
    np.testing.assert_allclose(np.asarray(found)[:, 0], np.asarray(expected).reshape(-1), atol=0.02)
    found = await passes.step(0, (7, 9), None)
    forced = teacher_forced(PlainModel(SHAPE, weights(), LEAN), (*PROMPT, 7, 9))
    np.testing.assert_allclose(np.asarray(found), forced[-2:].T, atol=0.02)
    assert told[-1] == SHAPE.layers
    await passes.close()
    await local.model.close()


async def test_parties_keep_what_they_compiled(
    local: LocalParties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of a generation that was made are found where the parties keep them, and are not compiled again."""
    await tokens(await local.opened(), 2)
    await local.model.close()
    folders = {local.config.path(place.programs) for place in local.config.party}
    store = ProgramStore(folders.pop())
    assert not folders  # local parties share one
    monkeypatch.setattr(programs, "_compiled", lambda *_: pytest.fail("it was compiled again"))
    made = programs.Programs(SHAPE, GenerationSpec(16, 8, PLAN, answer="logits"), store=store)
    for program in (made.embed(16), made.prompt(), made.last(16), made.head(1), made.step(1)):
        assert program.code
    with pytest.raises(pytest.fail.Exception):
        programs.Programs(SHAPE, GenerationSpec(16, 8, PLAN), store=ProgramStore(tmp_path)).embed(16)


async def test_two_clients_at_once_do_not_disturb_each_other(local: LocalParties) -> None:
    alone = await tokens(await local.opened(), 3)
    together = await asyncio.gather(*(_answer(local) for _ in range(2)))
    assert together == [alone, alone]
    await local.model.close()


async def _answer(local: LocalParties) -> list[int]:
    passes = await local.opened()
    try:
        return await tokens(passes, 3)
    finally:
        await passes.close()


async def test_weights_that_all_parties_hold_are_not_dealt_again(local: LocalParties) -> None:
    told = await local.deal()
    assert len(told) == 7 and not any(dealt for _, dealt in told)


async def test_each_party_is_a_process_of_its_own_that_leaves_no_dump_and_does_without_torch(
    local: LocalParties,
) -> None:
    await tokens(await local.opened(), 1)
    await local.model.close()
    for rank in range(3):
        for process in (local.party(rank), local.child(rank, "engine"), local.child(rank, "tunnel")):
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
            assert psutil.Process(process.pid).environ().keys() <= ALLOWED
        # Importing torch would take seconds and memory at each of three parties, at every start.
        loaded = Path(f"/proc/{local.child(rank, 'engine').pid}/maps").read_text()
        assert "libspu" in loaded and "jax" in loaded and "libtorch" not in loaded
    assert len({local.child(rank, "engine").pid for rank in range(3)}) == 3


ALLOWED = {
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "CC"),
    *("CLOISTER_STATE", "CLOISTER_CACHE", "CLOISTER_DATA", "CLOISTER_SHARED", "OMP_NUM_THREADS", "JAX_PLATFORMS"),
    *("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
}


async def test_a_provider_may_not_open_generations_nor_a_client_deal_weights(local: LocalParties) -> None:
    for own, message in (
        (local.keys.provider, Open(b"s" * 16, GenerationSpec(16, 2))),
        (local.keys.client(), AskWeights()),
        (local.keys.client(), Complete("mine", b"{}", ("w/a",))),
    ):
        parties = await Parties.connect(local.config, own)
        parties.post(message)
        with pytest.raises(Unauthorized, match="may not say"):
            await parties.next(0, Open)
        await parties.close()


async def test_foreign_keys_get_nowhere(local: LocalParties, tmp_path: Path) -> None:
    foreign = make_keys(tmp_path / "foreign")
    with pytest.raises(CloisterError) as refused:
        await Parties.connect(local.config, foreign.client())
    assert refused.value.code in ("invalid_api_key", "party_lost")


async def test_a_client_cannot_speak_as_a_party(local: LocalParties) -> None:
    parties = await local.as_client()
    parties.post(Prepare(9, b"k" * 16))
    with pytest.raises(ProtocolError):
        await parties.next(0, Open)
    await parties.close()
    await (await local.opened()).close()
    await local.model.close()


@pytest.mark.parametrize(
    "spec",
    [
        GenerationSpec(17, 2),  # not a bucket
        GenerationSpec(16, 0),
        GenerationSpec(16, 2, replace(PLAN, method="mine")),  # type: ignore[arg-type]
    ],
)
async def test_a_spec_that_makes_no_sense_ends_the_connection_alone(local: LocalParties, spec: GenerationSpec) -> None:
    await connected(local, 90)
    parties = await local.as_client()
    before = (await parties.status())[0].epoch
    with pytest.raises(CloisterError):
        await parties.open(spec)
    await parties.close()
    parties = await local.as_client()
    after = (await parties.status())[0]
    assert after.ready and after.epoch == before and after.sessions == 0
    await parties.close()
    await local.model.close()


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
async def test_a_pass_is_dealt_what_it_needs_and_nothing_else(
    local: LocalParties, dealt: dict[str, tuple[int, ...]]
) -> None:
    await connected(local, 90)
    parties = await local.as_client()
    session = await parties.open(GenerationSpec(16, 2))
    for name, dims in dealt.items():
        await session.deal(name, np.zeros(dims, np.int32))
    with pytest.raises(InvalidRequest, match="not what this pass needs"):
        await session.run("prefill")
    assert all(each.ready for each in await parties.status())
    await parties.close()
    await local.model.close()


async def test_another_connection_cannot_go_on_with_a_session(local: LocalParties) -> None:
    """Not even one of the same client: a session belongs to the connection that opened it."""
    await connected(local, 90)
    owner, thief = await local.as_client(), await local.as_client()
    session = await owner.open(GenerationSpec(16, 2))
    name = session._name
    thief._inboxes[name] = tuple(asyncio.Queue() for _ in thief.connections)
    for message in (Put(name, ShareHead("coarse", "int32", (2, 16))), Run(name, 0, "prefill")):
        thief.post(message)
        with pytest.raises(InvalidRequest, match="no such session"):
            await thief.next(0, Run, name)
    assert all(each.sessions == 1 for each in await owner.status())
    for parties in (owner, thief):
        await parties.close()
    await local.model.close()


async def test_nothing_a_user_said_is_in_the_parties_logs(local: LocalParties) -> None:
    await tokens(await local.opened(), 1)
    await local.model.close()
    for rank in range(3):
        lines = local.log(rank).splitlines()
        assert lines and all(line.startswith(f"party {rank}: ") for line in lines)
