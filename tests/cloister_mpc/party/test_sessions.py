"""Three parties' sessions, joined by calls instead of connections; engines and clients are lists of what they heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloister_mpc.config import Limits, PartiesConfig
from cloister_mpc.local_parties import make_local
from cloister_mpc.messages import (
    Close,
    Done,
    GenerationSpec,
    Open,
    Opened,
    Piece,
    Progress,
    Put,
    Ready,
    Refused,
    Result,
    Run,
    ShareHead,
    Turn,
    Withdraw,
)
from cloister_mpc.party.sessions import Sessions

A, B = b"a" * 16, b"b" * 16
SPEC = GenerationSpec(16, 4)
HEAD = ShareHead("coarse", "int32", (2, 2))


class Heard:
    """A client's connection to one party, or an engine."""

    def __init__(self) -> None:
        self.messages: list[msgspec.Struct] = []

    def post(self, message: msgspec.Struct) -> None:
        self.messages.append(message)

    async def send(self, message: msgspec.Struct) -> None:
        self.post(message)

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.messages]


class Client:
    """Its three connections."""

    def __init__(self, together: Parties) -> None:
        self._together = together
        self.connections = [Heard() for _ in together.parties]

    async def say(self, message: Any, to: tuple[int, ...] = (0, 1, 2)) -> None:
        for rank in to:
            await self._together.parties[rank].receive(self.connections[rank], message)  # type: ignore[arg-type]

    async def opens(self, session: bytes, spec: GenerationSpec = SPEC) -> None:
        await self.say(Open(session, spec))
        for party in self._together.parties:
            party.from_engine(Opened(session, 0))

    async def deals(self, session: bytes, head: ShareHead = HEAD, to: tuple[int, ...] = (0, 1, 2)) -> None:
        await self.say(Put(session, head), to)
        await self.say(Piece(session, b"x" * 64), to)

    def refusals(self) -> list[str]:
        return [m.code for one in self.connections for m in one.messages if isinstance(m, Refused)]

    def leaves(self, rank: int) -> None:
        self._together.parties[rank].gone(self.connections[rank])  # type: ignore[arg-type]


class Parties:
    def __init__(self, config: PartiesConfig) -> None:
        def teller(rank: int) -> Any:
            def tell(message: Ready | Turn | Withdraw) -> None:
                if isinstance(message, Ready):
                    self.parties[0].ready(rank, message)
                else:
                    for party in self.parties[1:]:
                        party.decided(message)

            return tell

        self.parties = [Sessions(config, rank, teller(rank)) for rank in range(3)]
        self.engines = [Heard() for _ in self.parties]
        for party, engine in zip(self.parties, self.engines, strict=True):
            party.begin(1, engine)

    def runs(self) -> list[list[tuple[bytes, int]]]:
        return [[(m.session, m.number) for m in engine.messages if isinstance(m, Run)] for engine in self.engines]


@pytest.fixture
def config(tmp_path: Path) -> PartiesConfig:
    return make_local(tmp_path, limits=Limits(sessions=2, session_mib=1, prompt_tokens=64))


@pytest.fixture
def together(config: PartiesConfig) -> Parties:
    return Parties(config)


async def test_a_run_begins_when_all_parties_were_asked_for_it(together: Parties) -> None:
    client = Client(together)
    await client.opens(A)
    await client.deals(A)
    await client.say(Run(A, 0, "prefill"), to=(0, 2))
    assert together.runs() == [[], [], []]
    await client.say(Run(A, 0, "prefill"), to=(1,))
    assert together.runs() == [[(A, 0)]] * 3


async def test_all_engines_run_in_one_order_whatever_order_clients_came_in(together: Parties) -> None:
    one, other = Client(together), Client(together)
    await one.opens(A)
    await other.opens(B)
    await one.say(Run(A, 0, "prefill"), to=(0, 1))
    await other.say(Run(B, 0, "prefill"), to=(2, 1, 0))
    await one.say(Run(A, 0, "prefill"), to=(2,))
    assert together.runs() == [[(B, 0), (A, 0)]] * 3


async def test_results_go_to_the_sessions_own_connection(together: Parties) -> None:
    one, other = Client(together), Client(together)
    await one.opens(A)
    await other.opens(B)
    await one.say(Run(A, 0, "prefill"))
    said = (Progress(A, 0, 1, 3), Result(A, HEAD, "aby3.AShr<FM64>", 4), Piece(A, b"xxxx"), Done(A, 0))
    for message in said:
        together.parties[1].from_engine(message)
    assert tuple(one.connections[1].messages[1:]) == said
    assert other.connections[1].kinds() == ["Opened"]


@pytest.mark.parametrize(
    "message", [Put(A, HEAD), Piece(A, b"x"), Run(A, 0, "prefill"), Close(A)], ids=["put", "piece", "run", "close"]
)
async def test_nobody_else_can_touch_a_session(together: Parties, message: Any) -> None:
    owner, thief = Client(together), Client(together)
    await owner.opens(A)
    before = together.engines[0].kinds()
    await thief.say(message)
    assert together.engines[0].kinds() == before and together.runs() == [[], [], []]
    assert not owner.refusals() and len(together.parties[0]) == 1
    await owner.deals(A)
    await owner.say(Run(A, 0, "prefill"))
    assert together.runs() == [[(A, 0)]] * 3


async def test_a_sessions_name_cannot_be_taken(together: Parties) -> None:
    owner, thief = Client(together), Client(together)
    await owner.opens(A)
    await thief.say(Open(A, SPEC))
    assert thief.refusals() == ["invalid_request"] * 3 and not owner.refusals()


@pytest.mark.parametrize(
    "different", [Put(A, ShareHead("fine", "int32", (2, 2))), Put(A, ShareHead("coarse", "int32", (4, 1)))]
)
async def test_parties_that_were_told_different_things_do_not_run(together: Parties, different: Put) -> None:
    client = Client(together)
    await client.opens(A)
    await client.deals(A, to=(0, 1))
    await client.say(different, to=(2,))
    await client.say(Piece(A, b"x" * 64), to=(2,))
    await client.say(Run(A, 0, "prefill"))
    assert together.runs() == [[], [], []] and client.refusals() == ["invalid_request"] * 3
    assert [len(party) for party in together.parties] == [0, 0, 0]


async def test_another_spec_at_one_party_do_not_run_either(together: Parties) -> None:
    client = Client(together)
    await client.say(Open(A, SPEC), to=(0, 1))
    await client.say(Open(A, GenerationSpec(32, 4)), to=(2,))
    for party in together.parties:
        party.from_engine(Opened(A, 0))
    await client.say(Run(A, 0, "prefill"))
    assert together.runs() == [[], [], []] and len(client.refusals()) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        (Put(A, HEAD), Run(A, 0, "prefill")),  # bytes are missing
        (Put(A, HEAD), Piece(A, b"x" * 65)),  # too many bytes
        (Put(A, HEAD), Put(A, HEAD)),
        (Run(A, 1, "prefill"),),  # not the next number
        (Run(A, 0, "prefill"), Put(A, HEAD)),  # while it waits for its turn
        (Put(A, ShareHead("coarse", "int32", (1024, 1024))),),  # over the session's limit
    ],
)
async def test_a_wrong_word_ends_the_session_at_that_party(together: Parties, wrong: tuple[Any, ...]) -> None:
    client = Client(together)
    await client.opens(A)
    for message in wrong:
        await client.say(message, to=(0,))
    assert client.refusals() == ["invalid_request"] and len(together.parties[0]) == 0
    assert isinstance(together.engines[0].messages[-1], Close)


async def test_runs_are_not_taken_before_the_engine_knows_the_session(together: Parties) -> None:
    client = Client(together)
    await client.say(Open(A, SPEC))
    await client.say(Run(A, 0, "prefill"))
    assert together.runs() == [[], [], []] and len(client.refusals()) == 3


async def test_there_are_limits(together: Parties) -> None:
    client = Client(together)
    await client.say(Open(A, GenerationSpec(80, 4)), to=(0,))
    assert client.refusals() == ["invalid_request"]
    for name in (A, B):
        await client.opens(name)
    await client.say(Open(b"c" * 16, SPEC), to=(0,))
    assert client.refusals() == ["invalid_request", "queue_full"]


async def test_an_epochs_end_is_told_and_forgets_every_session(together: Parties) -> None:
    client = Client(together)
    await client.opens(A)
    await client.say(Run(A, 0, "prefill"))
    together.parties[0].end("party 2 was lost")
    last = client.connections[0].messages[-1]
    assert isinstance(last, Refused) and last.code == "party_lost" and "party 2 was lost" in last.message
    together.parties[0].from_engine(Result(A, HEAD, "aby3.AShr<FM64>", 4))
    assert client.connections[0].messages[-1] is last
    await client.say(Open(B, SPEC), to=(0,))
    assert client.refusals() == ["party_lost", "service_unavailable"]


async def test_a_client_that_left_one_party_does_not_stop_the_others(together: Parties) -> None:
    """A party that said it is ready runs when its turn comes, or the others' engines would wait for it for ever."""
    client = Client(together)
    await client.opens(A)
    await client.say(Run(A, 0, "prefill"), to=(1, 2))
    client.leaves(2)
    await client.say(Run(A, 0, "prefill"), to=(0,))
    assert together.runs() == [[(A, 0)]] * 3
    for party in together.parties:
        party.from_engine(Done(A, 0))
    assert [len(party) for party in together.parties] == [1, 1, 0]


async def test_a_client_that_left_the_leader_is_withdrawn_everywhere(together: Parties) -> None:
    client = Client(together)
    await client.opens(A)
    await client.say(Run(A, 0, "prefill"), to=(0, 1))
    client.leaves(1)
    assert len(together.parties[1]) == 1
    client.leaves(0)
    client.leaves(2)
    assert [len(party) for party in together.parties] == [0, 0, 0] and together.runs() == [[], [], []]
    assert [type(engine.messages[-1]) for engine in together.engines] == [Close] * 3


async def test_an_idle_client_is_left_and_a_silent_engine_ends_the_epoch(
    config: PartiesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("cloister_mpc.party.sessions.monotonic", lambda: now)
    together = Parties(config)
    idle, busy = Client(together), Client(together)
    await idle.opens(A)
    await busy.opens(B)
    await busy.say(Run(B, 0, "prefill"))
    now += config.limits.run_silence_s - 1
    assert together.parties[0].watch() is None
    together.parties[0].from_engine(Progress(B, 0, 1, 3))
    now += config.limits.run_silence_s - 1
    assert together.parties[0].watch() is None
    assert idle.connections[0].kinds() == ["Opened", "Refused"] and len(together.parties[0]) == 1
    now += 2
    assert together.parties[0].watch() == "a party did not answer in time"


async def test_a_turn_nobody_asked_for_is_an_error(together: Parties) -> None:
    from cloister.errors import ProtocolError

    with pytest.raises(ProtocolError):
        together.parties[1].decided(Turn(A, 0))
    together.parties[1].decided(Withdraw(A, False))  # may cross a session's end
