"""A link through two bridges and a TCP connection carries what shared memory carries, bit for bit; or it ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest
import torch

from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.link import CpuAsker
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, Remote
from cloister.errors import ProtocolError
from cloister.link.memory import NUMBER_AT, LinkMemory, LinkShape, Mapping, wake
from cloister.link.network.address import Address, address_of
from cloister.link.network.credentials import credentials_from
from cloister.link.network.handshake import request_for
from cloister.link.network.records import ANSWER, HEAD, VaultEnd, after, longest_record
from cloister.link.network.tls import CutOff, establish
from cloister.messages.controller_gateway import AskEvidence, Evidence
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    FromVault,
    LeaseCores,
    PromptAccepted,
    Release,
    ToVault,
    VaultReady,
    WantCores,
)
from cloister.messages.frames import FrameReader
from cloister.messages.generation import Cancel
from cloister.messages.lifecycle import StartFailed
from cloister.messages.network_link import MAX_PART_BYTES, Accept, Arrived, VaultHostShown
from cloister.messages.types import VERSION, SamplingParams
from cloister.models.decoder import Decoder
from tests.link.bridges import (
    MODEL,
    PATIENCE_S,
    SECRET,
    Asked,
    Bridges,
    End,
    close_when_gone,
    may_read_memory,
    memory_of,
    start,
    wait_until,
)
from tests.link.test_link import Answer, decoder_of, tokens_of
from tests.link.vault_stand_in import BLOCKS, hidden_of, vault_of

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")

SMALL = LinkShape(heads=2, dim=16, layers=3, capacity=4)
PATIENCE_MS = 5000
CANARY = b"the words nobody else may ever read"


def shape_of(decoder: Decoder) -> LinkShape:
    return LinkShape(decoder.heads, decoder.cache_shape.dim, decoder.cache_shape.layers, capacity=32)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_answer_partitioned_over_the_network_is_the_open_one(dtype: str) -> None:
    decoder = decoder_of("llama", dtype)
    prompts = [(tokens_of(1, 5), 0), (tokens_of(2, 41), 0), (tokens_of(3, 37), 18)]
    answers = tokens_of(9, 19)
    with Bridges(shape_of(decoder)) as bridges, vault_of(decoder, bridges.vault_link, prompts), bridges.lend():
        asker = CpuAsker(bridges.link.shape, PATIENCE_MS)
        asker.attach(7, *bridges.link.service_descriptors)
        caches = [HostCache(decoder.cache_shape, BLOCKS, decoder.kernels.dtype) for _ in range(2)]
        opened = [Answer(decoder, *prompt, None, 12 * i) for i, prompt in enumerate(prompts)]
        parted = [Answer(decoder, *prompt, Remote(7, i), 12 * i) for i, prompt in enumerate(prompts)]
        for group, cache in ((opened, caches[0]), (parted, caches[1])):
            for answer in group:
                if chunks := answer.prompt_run():
                    hidden_of(decoder, cache, chunks)
        index = 0
        for count in (1, 1, 1, 8, 1, 7):
            step = answers[index : index + count]
            whole, part = (
                hidden_of(decoder, cache, [answer.run(step, index) for answer in group], asker)
                for group, cache in ((opened, caches[0]), (parted, caches[1]))
            )
            assert asker.broken() == {}
            assert torch.equal(whole, part)
            index += count


def verdict_of(decoder: Decoder, bridges: Bridges, patience_ms: int = PATIENCE_MS, slot: int = 0) -> str:
    """Ask until the link breaks; how it broke."""
    asker = CpuAsker(bridges.link.shape, patience_ms)
    asker.attach(0, *bridges.link.service_descriptors)
    cache = HostCache(decoder.cache_shape, 8, decoder.kernels.dtype)
    for index in range(100):
        hidden_of(decoder, cache, [Chunk([3], index, list(range(8)), Layout(0, 0, 0, 0, Remote(0, slot)))], asker)
        if broken := asker.broken():
            return broken[0]
        time.sleep(0.02)
    raise AssertionError("the link never broke")


@pytest.mark.parametrize("killed", ["server_bridge", "vault_bridge"])
def test_when_one_side_dies_the_other_ends_at_once_and_the_vault_is_lost(killed: str) -> None:
    decoder = decoder_of("llama", "fp32")
    with (
        Bridges(shape_of(decoder)) as bridges,
        vault_of(decoder, bridges.vault_link, [(tokens_of(1, 20), 0)]),
        bridges.lend(),
    ):
        watch = threading.Thread(target=close_when_gone, args=(bridges.server_bridge, bridges.link), daemon=True)
        watch.start()
        threading.Timer(0.3, getattr(bridges, killed).kill).start()
        assert verdict_of(decoder, bridges) == "vault_lost"
        bridges.ended()


def test_a_silent_vault_is_late_and_its_bridge_ends_with_the_connection() -> None:
    decoder = decoder_of("llama", "fp32")
    with (
        Bridges(shape_of(decoder)) as bridges,
        vault_of(decoder, bridges.vault_link, [(tokens_of(1, 20), 0)]) as pid,
        bridges.lend(),
    ):
        os.kill(pid, signal.SIGSTOP)
        assert verdict_of(decoder, bridges, patience_ms=200) == "vault_timeout"
        assert bridges.vault_bridge.poll() is None
        bridges.server_bridge.kill()  # as the controller does with a vault that was late
        bridges.vault_bridge.wait(10)


def test_a_question_the_vault_must_not_answer_is_refused_across_the_network() -> None:
    decoder = decoder_of("llama", "fp32")
    with (
        Bridges(shape_of(decoder)) as bridges,
        vault_of(decoder, bridges.vault_link, [(tokens_of(1, 20), 0)]),
        bridges.lend(),
    ):
        assert verdict_of(decoder, bridges, slot=1) == "link_malformed"


# ---- the conversation beside the link


def test_the_conversation_passes_and_the_floor_stays_with_the_vault_host() -> None:
    with Bridges(SMALL) as bridges:
        vault = End(bridges.lend(), ToVault)
        controller = End(bridges.controller.socket, FromVault)
        vault.send(VaultReady(VERSION))
        assert controller.handle() == VaultReady(VERSION)
        confided = AssignPrompt(1, "partitioned", bytes(300_000), SamplingParams())  # more than one record holds
        controller.send(confided, Release(9))
        assert vault.handle() == confided and vault.handle() == Release(9)
        vault.send(PromptAccepted(1, 5), WantCores(40))
        assert controller.handle() == PromptAccepted(1, 5)
        assert bridges.host.handle() == WantCores(40)
        bridges.host.send(LeaseCores(1))
        assert vault.handle() == LeaseCores(1)
        vault.send(CoresDone(), PromptAccepted(2, 6))
        assert bridges.host.handle() == CoresDone()
        assert controller.handle() == PromptAccepted(2, 6), "the controller never hears of the cores"
        controller.send(Cancel(1))
        assert vault.handle() == Cancel(1)


def test_the_floor_cannot_be_given_from_afar() -> None:
    with Bridges(SMALL) as bridges:
        vault = bridges.lend()
        bridges.controller.send(LeaseCores(1))
        assert "not the server's to give" in bridges.ended()[1]
        assert vault.recv(1) == b""


@pytest.mark.parametrize("who", ["controller", "vault", "host"])
def test_who_hangs_up_ends_both_bridges_in_good_order(who: str) -> None:
    with Bridges(SMALL) as bridges:
        vault = bridges.lend()
        ends = {"controller": bridges.controller.socket, "vault": vault, "host": bridges.host.socket}
        wait_until(lambda: sealed(bridges.server_bridge.pid) and sealed(bridges.vault_bridge.pid))
        ends[who].shutdown(socket.SHUT_RDWR)
        assert bridges.ended() == ("", ""), "an orderly end is no error"


def test_a_closed_link_ends_both_bridges() -> None:
    with Bridges(SMALL) as bridges, bridges.lend():
        wait_until(lambda: sealed(bridges.server_bridge.pid))
        bridges.link.close_down()
        bridges.server_bridge.wait(20)
        bridges.vault_bridge.wait(20)


def sealed(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        return "Seccomp:\t2" in status.read()


def test_the_bridges_seal_themselves() -> None:
    with Bridges(SMALL) as bridges, bridges.lend():
        for process in (bridges.server_bridge, bridges.vault_bridge):
            wait_until(lambda pid=process.pid: sealed(pid))  # type: ignore[misc]
            with open(f"/proc/{process.pid}/status") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"
            assert int(status["Threads"]) == 3


class AlteringLine:
    """Carries a connection, and flips a bit of what the server sends next once it is told to."""

    def __init__(self) -> None:
        self.alters = False

    def before(self, target: Address) -> Address:
        listener = Address("127.0.0.1", 0).listen()
        threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()
        return address_of(listener)

    def _accept(self, listener: socket.socket, target: Address) -> None:
        with listener:
            server, _ = listener.accept()
        host = target.connect(5)
        threading.Thread(target=self._carry, args=(host, server), daemon=True).start()
        self._carry(server, host, alterable=True)

    def _carry(self, source: socket.socket, sink: socket.socket, *, alterable: bool = False) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                data[-1] ^= alterable and self.alters
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_a_record_altered_on_the_way_ends_both_sealed_bridges() -> None:
    line = AlteringLine()
    with Bridges(SMALL, between=line.before) as bridges:
        vault = End(bridges.lend(), ToVault)
        bridges.controller.send(Cancel(1))
        assert vault.handle() == Cancel(1)
        wait_until(lambda: sealed(bridges.server_bridge.pid) and sealed(bridges.vault_bridge.pid))
        line.alters = True
        bridges.controller.send(Cancel(2))
        server, host = bridges.ended()
        assert "altered" in host and "connection" in server
        assert vault.handle() is None


# ---- who is let in


def why_not(bridges: Bridges) -> str:
    """What the server bridge tells the controller."""
    told = FrameReader[StartFailed](StartFailed).feed(bridges.controller.socket.recv(1 << 16))
    return told[0].message


def test_a_server_with_another_key_gets_no_vault() -> None:
    with Bridges(SMALL, server_secret=bytes(32)) as bridges:
        assert bridges.host.handle() is None, "nobody was admitted"
        assert "does not know the key" in why_not(bridges) and "link" in bridges.ended()[1]


def test_a_server_with_another_model_is_told_why() -> None:
    with Bridges(SMALL, server_model=b"\1" * 32) as bridges:
        assert bridges.host.handle() is None
        assert "serves another model" in why_not(bridges)


def test_a_host_whose_evidence_nobody_checked_is_asked_for_no_vault() -> None:
    with Bridges(SMALL, pinned=b"x" * 32) as bridges:
        assert bridges.host.handle() is None
        assert "not the one whose evidence was checked" in why_not(bridges)


def test_a_host_shows_its_evidence_and_the_controller_learns_whose_tls_it_came_through() -> None:
    document = os.urandom(3 * MAX_PART_BYTES + 5)
    with Asked(b"n" * 32) as asked:
        wanted = asked.host.handle()
        assert isinstance(wanted, AskEvidence) and wanted.nonce == b"n" * 32
        asked.host.send(Evidence(0, document))
        shown = asked.controller.handle()
        assert shown == VaultHostShown(asked.certificate, document)
        assert asked.ended() == ("", "")


# ---- what must not be seen


@pytest.mark.skipif(not may_read_memory(), reason="only root may read the memory of a process that forbids it")
def test_a_prompt_that_passed_is_in_neither_bridges_memory() -> None:
    """While it passes it must be; what is promised is that it does not stay."""
    with Bridges(SMALL) as bridges:
        vault = End(bridges.lend(), ToVault)
        for process in (bridges.server_bridge, bridges.vault_bridge):
            assert memory_of(process.pid), "this test can read memory"
        for _ in range(2):
            bridges.controller.send(AssignPrompt(1, "partitioned", CANARY * 3000, SamplingParams()))
            assert CANARY in vault.handle().prompt
        time.sleep(0.1)
        for process in (bridges.server_bridge, bridges.vault_bridge):
            assert CANARY not in memory_of(process.pid)


# ---- the server bridge's rules


class LocalLink:
    """Both pieces of a link under the test's hands, and a vault's end that reads them."""

    def __init__(self) -> None:
        self.link = LinkMemory(SMALL)
        self.end = VaultEnd(SMALL, *self.link.vault_descriptors)
        self.question = Mapping(self.link.service_descriptors[0], SMALL.question_bytes, writable=True)
        self.answer = Mapping(self.link.service_descriptors[1], SMALL.answer_bytes, writable=False)

    def ask(self, number: int = 1, layer: int = 0, rows: int = 1) -> None:
        self.question.word(NUMBER_AT + 4).value, self.question.word(NUMBER_AT + 8).value = layer, rows
        self.question.word(NUMBER_AT).value = number
        wake(self.question)


@pytest.mark.parametrize("bad", [{"number": 2}, {"layer": 3}, {"rows": 0}, {"rows": 5}])
def test_a_malformed_question_is_not_sent(bad: dict[str, int]) -> None:
    local = LocalLink()
    local.ask(**bad)
    with pytest.raises(ProtocolError):
        local.end.next_question()


@pytest.mark.parametrize(
    ("number", "status", "rows", "size"),
    [(2, 0, 1, 1), (1, 0, 2, 2), (1, 0, 1, 2), (1, 0, 1, 0), (1, 4, 0, 0), (1, 3, 1, 1), (0, 0, 0, 0)],
)
def test_an_answer_that_fits_no_question_is_not_left(number: int, status: int, rows: int, size: int) -> None:
    local = LocalLink()
    local.ask()
    assert local.end.next_question() is not None
    record = HEAD.pack(ANSWER, number, status, rows) + b"\1" * (size * SMALL.part_bytes)
    with pytest.raises(ProtocolError):
        local.end.leave_answer(memoryview(record))
    assert local.answer.word(NUMBER_AT).value == 0
    with pytest.raises(ProtocolError):  # nor is it believed the second time
        local.end.leave_answer(memoryview(HEAD.pack(ANSWER, 1, 0, 1) + bytes(SMALL.part_bytes)))


def test_numbers_begin_again_where_those_of_the_link_do() -> None:
    assert [after(0), after(1), after(0xFFFFFFEF), after(0xFFFFFFF0)] == [1, 2, 0xFFFFFFF0, 1]


@pytest.mark.parametrize("gone", ["host", "controller"])
def test_a_bridge_whose_own_side_has_ended_ends_without_a_word(gone: str) -> None:
    with Asked(bytes(32)) as asked:
        (asked.host if gone == "host" else asked.controller).socket.close()
        if gone == "controller":
            asked.host.handle()
            asked.host.send(Evidence(0, b"evidence"))
        server_said, vault_said = asked.ended()
    assert (vault_said if gone == "host" else server_said) == ""


def test_a_doorkeeper_whose_vault_host_has_ended_ends_without_a_word() -> None:
    process, host = start("cloister.link.network.doorkeeper")
    assert process.stderr is not None
    with Address("127.0.0.1", 0).listen() as listener, process.stderr, host:
        accept = Accept(credentials_from(SECRET, "vault_host"), request_for(MODEL, SMALL))
        line = End(host, Arrived)
        line.send(accept, descriptors=(listener.fileno(),))
        address, server = address_of(listener), credentials_from(SECRET, "server")
        try:
            with address.connect(PATIENCE_S) as first, address.connect(PATIENCE_S) as second:
                establish(first, server, longest_record(SMALL), PATIENCE_S)
                assert isinstance(line.handle(), Arrived)
                host.close()
                with suppress(CutOff):  # it may end before the second peer has proved itself
                    establish(second, server, longest_record(SMALL), PATIENCE_S)
                wait_until(lambda: process.poll() is not None)
                assert process.stderr.read() == b""
        finally:
            process.kill()
            process.wait()
