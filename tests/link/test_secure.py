"""The secure channel: two who know the key understand each other, and nobody else gets a word in."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ProtocolError, SetupError
from cloister.link.network.address import ANY_CID, Address, address_of
from cloister.link.network.secret import read_secret, write_secret
from cloister.link.network.secure import GREETING, MAX_RECORD_BYTES, TAG_BYTES, SecureChannel, Side, meet
from tests.examples import examples

SECRET = bytes(range(32))
LIMIT = 4096
HEAD = 5


def both(near: Callable[[], object], far: Callable[[], object]) -> list[object]:
    """Run the two sides at once; each one's result, or the error it raised."""
    results: list[object] = [None, None]

    def run(place: int, side: Callable[[], object]) -> None:
        try:
            results[place] = side()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place, side), daemon=True) for place, side in enumerate((near, far))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def met(near_end: socket.socket, far_end: socket.socket) -> tuple[SecureChannel, SecureChannel]:
    near, far = both(lambda: meet(near_end, SECRET, "near", LIMIT), lambda: meet(far_end, SECRET, "far", LIMIT))
    assert isinstance(near, SecureChannel) and isinstance(far, SecureChannel)
    return near, far


class Wire:
    """Two channels whose bytes pass through our hands."""

    def __init__(self) -> None:
        self._near_end, near_wire = socket.socketpair()
        self._far_end, far_wire = socket.socketpair()
        self._near_wire, self._far_wire = near_wire, far_wire

        def carry(size: int, source: socket.socket, target: socket.socket) -> None:
            target.sendall(source.recv(size, socket.MSG_WAITALL))

        def courier() -> None:
            carry(len(GREETING) + 32, near_wire, far_wire)
            carry(len(GREETING) + 64, far_wire, near_wire)
            carry(32, near_wire, far_wire)

        thread = threading.Thread(target=courier, daemon=True)
        thread.start()
        self.near, self.far = met(self._near_end, self._far_end)
        thread.join()

    def record(self, *parts: bytes) -> bytes:
        """What the near side puts on the wire for one record."""
        self.near.send(*parts)
        return self.take(HEAD + sum(map(len, parts)) + TAG_BYTES)

    def take(self, size: int) -> bytes:
        return self._near_wire.recv(size, socket.MSG_WAITALL)

    def deliver(self, data: bytes) -> None:
        self._far_wire.sendall(data)

    def cut(self) -> None:
        self._far_wire.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._near_end, self._far_end, self._near_wire, self._far_wire):
            end.close()


def test_records_arrive_whole_in_order_and_both_ways() -> None:
    near, far = met(*socket.socketpair())
    near.send(b"one", bytearray(b" and "), memoryview(b"two"))
    near.send()
    far.send(bytes(LIMIT))
    assert bytes(far.receive() or b"") == b"one and two"
    record = far.receive()
    assert record is not None and len(record) == 0
    assert bytes(near.receive() or b"") == bytes(LIMIT)
    near.end()
    assert far.receive() is None
    with pytest.raises(ProtocolError):
        near.send(b"after the end")
    with pytest.raises(ProtocolError):
        far.receive()


@examples(25)
@given(st.lists(st.binary(max_size=300), max_size=12), st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_records_do_not_depend_on_the_pieces_they_arrive_in(texts: list[bytes], pieces: list[int]) -> None:
    with Wire() as wire:
        stream = b"".join(wire.record(text) for text in texts)
        received: list[bytes] = []

        def read() -> None:
            for _ in texts:
                record = wire.far.receive()
                assert record is not None
                received.append(bytes(record))

        def deliver() -> None:
            at = 0
            for size in itertools.cycle(pieces):
                if at >= len(stream):
                    return
                wire.deliver(stream[at : at + size])
                at += size

        assert both(deliver, read) == [None, None]
        assert received == texts


def test_a_long_run_of_records_passes_through_the_same_buffers() -> None:
    near, far = met(*socket.socketpair())
    texts = [os.urandom(1 + 37 * n % LIMIT) for n in range(400)]

    def send() -> None:
        for text in texts:
            near.send(text)

    def read() -> list[bytes]:
        return [bytes(far.receive() or b"") for _ in texts]

    assert both(send, read) == [None, texts]


@given(st.data())
def test_a_record_altered_at_any_byte_ends_the_connection(data: st.DataObject) -> None:
    with Wire() as wire:
        sealed = bytearray(wire.record(b"forty-two bytes of text, give or take some"))
        at = data.draw(st.integers(0, len(sealed) - 1))
        sealed[at] ^= data.draw(st.integers(1, 255))
        wire.deliver(bytes(sealed))
        wire.cut()  # a length made larger waits for more, which does not come
        with pytest.raises(ProtocolError):
            wire.far.receive()
        with pytest.raises(ProtocolError):
            wire.far.receive()
        with pytest.raises(ProtocolError):
            wire.far.send(b"more")


@examples(40)
@given(st.permutations(range(4)), st.integers(0, 3))
def test_records_repeated_left_out_or_moved_do_not_open(order: list[int], repeated: int) -> None:
    with Wire() as wire:
        sealed = [wire.record(bytes([n])) for n in range(4)]
        played = [*order, repeated]
        wire.deliver(b"".join(sealed[n] for n in played))
        for place, n in enumerate(played):
            if n != place:
                with pytest.raises(ProtocolError):
                    wire.far.receive()
                return
            assert bytes(wire.far.receive() or b"") == bytes([n])
        raise AssertionError("five records cannot be the four that were sent")


@pytest.mark.parametrize("kept", [0, 1, HEAD, HEAD + 3, HEAD + 10])
def test_a_connection_cut_off_is_not_an_end(kept: int) -> None:
    with Wire() as wire:
        wire.deliver(wire.record(b"whole") + wire.record(b"cut")[:kept])
        wire.cut()
        assert bytes(wire.far.receive() or b"") == b"whole"
        with pytest.raises(ProtocolError, match="cut off"):
            wire.far.receive()


def test_an_end_cannot_be_forged_from_a_record() -> None:
    with Wire() as wire:
        sealed = bytearray(wire.record())
        sealed[4] = 1
        wire.deliver(bytes(sealed))
        with pytest.raises(ProtocolError):
            wire.far.receive()


def test_a_record_sent_back_to_its_sender_does_not_open() -> None:
    with Wire() as wire:
        sealed = wire.record(b"echo")
        wire._near_wire.sendall(sealed)
        with pytest.raises(ProtocolError):
            wire.near.receive()


def test_oversized_records_are_refused_before_they_are_read_or_sent() -> None:
    with Wire() as wire:
        wire.deliver(struct.pack("<IB", LIMIT + 1, 0))
        with pytest.raises(ProtocolError, match="longer"):
            wire.far.receive()
        with pytest.raises(ProtocolError, match="longer"):
            wire.near.send(bytes(LIMIT), b"!")
    one, other = socket.socketpair()
    with one, other, pytest.raises(ProtocolError, match="longer"):
        SecureChannel(one, SECRET, SECRET, MAX_RECORD_BYTES + 1)


def test_nothing_sent_is_readable_on_the_wire_and_no_two_meetings_are_alike() -> None:
    text = b"the very same words, and enough of them to be found"
    seen = []
    for _ in range(2):
        with Wire() as wire:
            seen.append(wire.record(text))
            assert text not in seen[-1] and text[:8] not in seen[-1]
    assert seen[0] != seen[1]


def test_what_was_sent_or_received_is_overwritten() -> None:
    near, far = met(*socket.socketpair())
    near.send(b"a prompt of some length")
    record = far.receive()
    assert record is not None
    far.forget()
    assert bytes(record) == bytes(len(record))
    assert b"prompt" not in bytes(near._plain) and b"prompt" not in bytes(far._text)


# ---- strangers


@pytest.mark.parametrize("wrong", ["near", "far"])
def test_who_does_not_know_the_key_learns_and_says_nothing(wrong: Side) -> None:
    near_end, far_end = socket.socketpair()
    keys = {"near": SECRET, "far": SECRET, wrong: bytes(32)}

    def near() -> object:
        with near_end:
            return meet(near_end, keys["near"], "near", LIMIT)

    def far() -> object:
        with far_end:
            return meet(far_end, keys["far"], "far", LIMIT)

    for result in both(near, far):
        assert isinstance(result, ProtocolError)


def test_the_listening_side_sends_no_record_before_the_other_proved_itself() -> None:
    """All a stranger gets from it is an ephemeral key and a proof that is worth nothing elsewhere."""
    stranger, far_end = socket.socketpair()
    stranger.settimeout(5)
    own = GREETING + X25519PrivateKey.generate().public_key().public_bytes_raw()

    def pretend() -> bytes:
        stranger.sendall(own)
        stranger.recv(len(GREETING) + 64, socket.MSG_WAITALL)
        stranger.sendall(bytes(32))
        return stranger.recv(1)

    def far() -> None:
        with far_end:
            meet(far_end, SECRET, "far", LIMIT)

    said, error = both(pretend, far)
    assert said == b"" and isinstance(error, ProtocolError)


def test_a_recorded_meeting_cannot_be_played_again() -> None:
    near_end, near_wire = socket.socketpair()
    far_end, far_wire = socket.socketpair()
    recorded: list[bytes] = []

    def courier() -> None:
        recorded.append(near_wire.recv(48, socket.MSG_WAITALL))
        far_wire.sendall(recorded[0])
        near_wire.sendall(far_wire.recv(80, socket.MSG_WAITALL))
        recorded.append(near_wire.recv(32, socket.MSG_WAITALL))
        far_wire.sendall(recorded[1])

    thread = threading.Thread(target=courier)
    thread.start()
    met(near_end, far_end)
    thread.join()
    again, far_again = socket.socketpair()

    def replay() -> None:
        again.sendall(recorded[0])
        again.recv(80, socket.MSG_WAITALL)
        again.sendall(recorded[1])

    _, error = both(replay, lambda: meet(far_again, SECRET, "far", LIMIT))
    assert isinstance(error, ProtocolError)


@examples(40)
@given(st.integers(0, 159), st.integers(1, 255))
def test_an_introduction_altered_at_any_byte_fails(at: int, flip: int) -> None:
    """48 bytes go there, 80 come back, 32 go there. The top bit of an X25519 key is ignored by the curve alone."""
    near_end, near_wire = socket.socketpair()
    far_end, far_wire = socket.socketpair()

    def courier() -> None:
        begin = 0
        for size, source, target in ((48, near_wire, far_wire), (80, far_wire, near_wire), (32, near_wire, far_wire)):
            data = bytearray(source.recv(size, socket.MSG_WAITALL))
            if begin <= at < begin + len(data):
                data[at - begin] ^= flip
            begin += size
            target.sendall(data)
            if len(data) < size:
                return

    def close_after(end: socket.socket, side: Side) -> object:
        with end:
            return meet(end, SECRET, side, LIMIT)

    def carry() -> None:
        with near_wire, far_wire, suppress(OSError):
            courier()

    thread = threading.Thread(target=carry)
    thread.start()
    results = both(lambda: close_after(near_end, "near"), lambda: close_after(far_end, "far"))
    thread.join()
    # The last message is the near side's proof: by then that side rightly believes the far one.
    assert isinstance(results[1], ProtocolError)
    assert at >= 128 or isinstance(results[0], ProtocolError)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(40), GREETING + bytes(32)])
def test_a_stranger_with_another_protocol_or_a_worthless_key_is_refused(sent: bytes) -> None:
    stranger, far_end = socket.socketpair()
    stranger.sendall(sent)
    stranger.shutdown(socket.SHUT_WR)
    with stranger, far_end, pytest.raises(ProtocolError):
        meet(far_end, SECRET, "far", LIMIT)


def test_a_stranger_who_says_nothing_or_too_little_is_not_waited_for() -> None:
    stranger, far_end = socket.socketpair()
    with stranger, far_end:
        stranger.sendall(GREETING)
        with pytest.raises(ProtocolError, match="in time"):
            meet(far_end, SECRET, "far", LIMIT, patience_s=0.1)


# ---- keys and addresses


def test_a_key_file_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    old = os.umask(0)
    try:
        write_secret(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    secret = read_secret(path)
    assert len(secret) == 32 and secret != bytes(32)
    with pytest.raises(SetupError):
        write_secret(path)
    assert read_secret(path) == secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_secret(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(SetupError, match="Others"):
        read_secret(tmp_path / "key")


@pytest.mark.parametrize("content", ["", "ab" * 31, "ab" * 33, "not hexadecimal at all" * 3, "é" * 32])
def test_a_key_file_without_a_key_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SetupError) as refused:
        read_secret(path)
    assert not content or content[:8] not in str(refused.value)
    with pytest.raises(SetupError):
        read_secret(tmp_path / "no such file")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.2:7000", "10.0.0.2", 7000),
        ("vaults.example:1", "vaults.example", 1),
        ("[::1]:7000", "::1", 7000),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ("vsock:3:7000", 3, 7000),
        ("vsock:any:4294967295", ANY_CID, 4294967295),
    ],
)
def test_addresses_are_understood_and_written_back(text: str, host: str | int, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":7000", "host:70000", "::1:7000", "vsock:7000", "vsock:x:1", "vsock:99999999999:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SetupError):
        Address.parse(text)


def test_a_channel_over_vsock() -> None:
    local = 1  # VMADDR_CID_LOCAL: this very machine, where the kernel has the loopback transport
    if not hasattr(socket, "AF_VSOCK"):
        pytest.skip("this Python knows no vsock")
    try:
        listener = Address(ANY_CID, 2**32 - 1).listen()
        near_end = Address(local, address_of(listener).port).connect(5)
    except OSError as reason:
        pytest.skip(f"no vsock loopback in this kernel: {reason}")
    with listener:
        far_end, _ = listener.accept()
    near, far = met(near_end, far_end)
    near.send(b"through the machine's back door")
    assert bytes(far.receive() or b"") == b"through the machine's back door"
