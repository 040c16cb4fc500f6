"""The secure channel: two who know the key understand each other, and nobody else gets a word in."""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cloister.errors import ProtocolError, SetupError
from cloister.link.network import tls
from cloister.link.network.address import ANY_CID, Address, address_of
from cloister.link.network.credentials import certificate_hash, credentials_from, read_secret, write_secret
from cloister.link.network.tls import MAX_RECORD_BYTES, PROTOCOL, CutOff, SecureChannel, establish
from cloister.messages.network_link import Credentials, Role

SECRET = bytes(range(32))
SERVER, HOST = credentials_from(SECRET, "server"), credentials_from(SECRET, "vault_host")
LIMIT = 4096
TLS_HEAD, TLS_TAG = 5, 16


def both(one: Callable[[], object], other: Callable[[], object]) -> list[object]:
    """Run the two sides at once; each one's result, or the error it raised."""
    results: list[object] = [None, None]

    def run(place: int, side: Callable[[], object]) -> None:
        try:
            results[place] = side()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place, side), daemon=True) for place, side in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def shake(end: socket.socket, credentials: Credentials) -> object:
    """One side's handshake; the connection is closed where it fails."""
    try:
        return establish(end, credentials, LIMIT)
    except ProtocolError:
        end.close()
        raise


def connected(server_end: socket.socket, host_end: socket.socket) -> tuple[SecureChannel, SecureChannel]:
    server, host = both(lambda: shake(server_end, SERVER), lambda: shake(host_end, HOST))
    assert isinstance(server, SecureChannel) and isinstance(host, SecureChannel), (server, host)
    return server, host


def tls_record(source: socket.socket) -> bytes:
    """The next record of the TLS stream, or what there is of it."""
    head = source.recv(TLS_HEAD, socket.MSG_WAITALL)
    if len(head) < TLS_HEAD:
        return head
    return head + source.recv(struct.unpack("!H", head[3:])[0], socket.MSG_WAITALL)


class Courier:
    """Carries a connection between two wires; keeps what passes, and may change one byte of what one side sends."""

    def __init__(self, side: str = "", at: int = 0, flip: int = 0) -> None:
        self.carried = {"server": bytearray(), "host": bytearray()}
        self._change = (side, at, flip)

    def carry(self, name: str, source: socket.socket, target: socket.socket) -> None:
        side, at, flip = self._change
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                begin = len(self.carried[name])
                self.carried[name] += data
                if name == side and begin <= at < begin + len(data):
                    data[at - begin] ^= flip
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class Wire:
    """Two channels whose bytes pass through our hands once they have shaken hands."""

    def __init__(self) -> None:
        self._server_end, self.server_wire = socket.socketpair()
        self._host_end, self._host_wire = socket.socketpair()
        self._ends = (self._server_end, self.server_wire, self._host_end, self._host_wire)
        done = threading.Event()

        def carry(source: socket.socket, target: socket.socket) -> None:
            source.settimeout(0.01)
            while not done.is_set():
                with suppress(TimeoutError):
                    target.sendall(source.recv(1 << 16))
            source.settimeout(None)

        ways = ((self.server_wire, self._host_wire), (self._host_wire, self.server_wire))
        threads = [threading.Thread(target=carry, args=way, daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        self.server, self.host = connected(self._server_end, self._host_end)
        done.set()
        for thread in threads:
            thread.join()

    def record(self, *parts: bytes) -> bytes:
        """What the server's side puts on the wire for one short record."""
        self.server.send(*parts)
        return tls_record(self.server_wire)

    def deliver(self, data: bytes) -> None:
        self._host_wire.sendall(data)

    def cut(self) -> None:
        self._host_wire.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.close()


def test_records_arrive_whole_in_order_and_both_ways() -> None:
    server, host = connected(*socket.socketpair())
    server.send(b"one", bytearray(b" and "), memoryview(b"two"))
    server.send()
    host.send(bytes(LIMIT))
    assert bytes(host.receive() or b"") == b"one and two"
    record = host.receive()
    assert record is not None and len(record) == 0
    assert bytes(server.receive() or b"") == bytes(LIMIT)
    server.end()
    assert host.receive() is None
    for channel in (server, host):
        with pytest.raises(ProtocolError):
            channel.send(b"after the end")
    with pytest.raises(ProtocolError):
        host.receive()
    assert server.receive() is None  # whose own end it is: another thread may just be about to ask


def test_both_may_send_and_receive_at_once() -> None:
    """Each side's receiving thread and two sending ones share one TLS object."""
    channels = connected(*socket.socketpair())
    texts = [os.urandom(1 + 37 * n % LIMIT) for n in range(300)]

    def talk(channel: SecureChannel) -> list[bytes]:
        def send() -> None:
            for text in texts:
                channel.send(text)

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        heard = [bytes(channel.receive() or b"") for _ in range(2 * len(texts))]
        for thread in threads:
            thread.join()
        return sorted(heard)

    expected = sorted(texts * 2)
    assert both(lambda: talk(channels[0]), lambda: talk(channels[1])) == [expected, expected]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=12), st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_records_do_not_depend_on_the_pieces_they_arrive_in(texts: list[bytes], pieces: list[int]) -> None:
    with Wire() as wire:
        stream = b"".join(wire.record(text) for text in texts)
        received: list[bytes] = []

        def read() -> None:
            for _ in texts:
                record = wire.host.receive()
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
    server, host = connected(*socket.socketpair())
    texts = [os.urandom(1 + 37 * n % LIMIT) for n in range(400)]

    def send() -> None:
        for text in texts:
            server.send(text)

    def read() -> list[bytes]:
        return [bytes(host.receive() or b"") for _ in texts]

    assert both(send, read) == [None, texts]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_record_altered_at_any_byte_ends_the_connection(data: st.DataObject) -> None:
    with Wire() as wire:
        sealed = bytearray(wire.record(b"forty-two bytes of text, give or take some"))
        at = data.draw(st.integers(0, len(sealed) - 1))
        sealed[at] ^= data.draw(st.integers(1, 255))
        wire.deliver(bytes(sealed))
        wire.cut()  # a length made larger waits for more, which does not come
        with pytest.raises(ProtocolError):
            wire.host.receive()
        with pytest.raises(ProtocolError):
            wire.host.receive()
        with pytest.raises(ProtocolError):
            wire.host.send(b"more")


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 3))
def test_records_repeated_left_out_or_moved_do_not_open(order: list[int], repeated: int) -> None:
    with Wire() as wire:
        sealed = [wire.record(bytes([n])) for n in range(4)]
        played = [*order, repeated]
        wire.deliver(b"".join(sealed[n] for n in played))
        for place, n in enumerate(played):
            if n != place:
                with pytest.raises(ProtocolError):
                    wire.host.receive()
                return
            assert bytes(wire.host.receive() or b"") == bytes([n])
        raise AssertionError("five records cannot be the four that were sent")


@pytest.mark.parametrize("kept", [0, 1, TLS_HEAD, TLS_HEAD + 3, TLS_HEAD + 10])
def test_a_connection_cut_off_is_not_an_end(kept: int) -> None:
    with Wire() as wire:
        wire.deliver(wire.record(b"whole") + wire.record(b"cut")[:kept])
        wire.cut()
        assert bytes(wire.host.receive() or b"") == b"whole"
        with pytest.raises(CutOff, match="cut off"):
            wire.host.receive()


@pytest.mark.parametrize("alert", [b"\1\0", b"\2\0", b"\1\0\x15"])
@pytest.mark.parametrize("kind", [21, 23])
def test_an_end_cannot_be_forged(alert: bytes, kind: int) -> None:
    """An alert in the clear, or as if it were sealed, is no end: only TLS's own sealed alert is."""
    with Wire() as wire:
        wire.deliver(struct.pack("!BHH", kind, 0x0303, len(alert)) + alert)
        wire.cut()
        with pytest.raises(ProtocolError):
            wire.host.receive()


def test_an_end_in_the_middle_of_a_record_is_no_end() -> None:
    """A peer that knows the key and breaks the framing."""
    for sent in (b"\5\0", b"\5\0\0\0", b"\5\0\0\0abc"):
        server, host = connected(*socket.socketpair())
        server._tls.write(sent)
        server.end()
        with pytest.raises(ProtocolError, match="middle"):
            host.receive()


def test_a_record_sent_back_to_its_sender_does_not_open() -> None:
    with Wire() as wire:
        sealed = wire.record(b"echo")
        wire.server_wire.sendall(sealed)
        with pytest.raises(ProtocolError):
            wire.server.receive()


def test_oversized_records_are_refused_before_they_are_read_or_sent() -> None:
    server, host = connected(*socket.socketpair())
    server._tls.write(struct.pack("<I", LIMIT + 1))
    server._connection.sendall(server._outgoing.read())
    with pytest.raises(ProtocolError, match="longer"):
        host.receive()
    server, _ = connected(*socket.socketpair())
    with pytest.raises(ProtocolError, match="longer"):
        server.send(bytes(LIMIT), b"!")
    one, other = socket.socketpair()
    with one, other, pytest.raises(ProtocolError, match="longer"):
        SecureChannel(one, SERVER, MAX_RECORD_BYTES + 1)


def test_a_connection_ends_before_its_key_is_used_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    server, host = connected(*socket.socketpair())
    monkeypatch.setattr(tls, "MAX_SENT_BYTES", 3 * LIMIT)
    for _ in range(2):
        server.send(bytes(LIMIT))
        assert host.receive() is not None
    with pytest.raises(ProtocolError, match="as much as one connection may"):
        server.send(bytes(LIMIT))
    with pytest.raises(CutOff):
        host.receive()


def test_nothing_sent_is_readable_on_the_wire_and_no_two_connections_are_alike() -> None:
    text = b"the very same words, and enough of them to be found"
    seen = []
    for _ in range(2):
        with Wire() as wire:
            seen.append(wire.record(text))
            assert text not in seen[-1] and text[:8] not in seen[-1]
    assert seen[0] != seen[1]


def test_what_was_sent_or_received_is_overwritten() -> None:
    server, host = connected(*socket.socketpair())
    server.send(b"a prompt of some length")
    record = host.receive()
    assert record is not None
    host.forget()
    assert bytes(record) == bytes(len(record))
    assert not any(server._out) and not any(host._record)
    assert host._tls.context.options & tls._OP_CLEANSE_PLAINTEXT, "nor does OpenSSL keep it"


# ---- strangers


def one_sided(credentials: Credentials, stranger: Callable[[socket.socket], object]) -> tuple[object, object]:
    """A stranger of our own making against one honest side; what each came to."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)

    def pretend() -> object:
        with ours:
            return stranger(ours)

    said, result = both(pretend, lambda: shake(theirs, credentials))
    theirs.close()
    return said, result


def other_than(role: Role) -> Credentials:
    return credentials_from(bytes(32), role)


@pytest.mark.parametrize(("server", "host"), [(other_than("server"), HOST), (SERVER, other_than("vault_host"))])
def test_who_does_not_know_the_key_learns_and_says_nothing(server: Credentials, host: Credentials) -> None:
    one, other = socket.socketpair()
    results = both(lambda: shake(one, server), lambda: shake(other, host))
    assert all(isinstance(result, ProtocolError) for result in results)
    assert "does not know the key" in str(results[0])


def stranger_tls(
    role: Role,
    identity: Credentials | None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    protocol: str = PROTOCOL,
) -> Callable[[socket.socket], object]:
    """A peer that believes anybody, with the given identity or none; what it can read once it thinks it is in."""
    listens = role == "vault_host"

    def speak(ours: socket.socket) -> object:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = version
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols([protocol])
        if identity is not None:
            with tls._as_file(identity.own) as path:
                context.load_cert_chain(path)
        with suppress(OSError), context.wrap_socket(ours, server_side=listens) as secure:
            return secure.recv(1000)
        return b""

    return speak


def refused(credentials: Credentials, stranger: Callable[[socket.socket], object], why: str) -> None:
    said, result = one_sided(credentials, stranger)
    assert isinstance(result, ProtocolError) and why in str(result), result
    assert said == b"", "nothing was sent to it"


@pytest.mark.parametrize("identity", [None, other_than("server")])
def test_a_server_that_believes_anybody_gets_nothing_without_the_key(identity: Credentials | None) -> None:
    refused(HOST, stranger_tls("server", identity), "does not know the key")


def test_a_vault_host_that_believes_anybody_gets_nothing_without_the_key() -> None:
    refused(SERVER, stranger_tls("vault_host", other_than("vault_host")), "does not know the key")


def test_a_role_cannot_be_played_with_the_others_credentials() -> None:
    """Nobody can be made to talk to itself: a server's certificate is none for a vault host, nor the reverse."""
    refused(SERVER, stranger_tls("vault_host", SERVER), "does not know the key")
    refused(HOST, stranger_tls("server", HOST), "does not know the key")


def test_a_certificate_is_pinned_even_where_tls_would_accept_it() -> None:
    """The second check by itself: TLS trusts the right certificate, the vault host accepts another."""
    one, other = socket.socketpair()

    def host() -> None:
        with one:
            channel = SecureChannel(one, HOST, LIMIT)
            channel._credentials = replace(HOST, peer=HOST.peer + b"!")
            channel.shake_hands(time.monotonic() + 10)

    result, _ = both(host, lambda: shake(other, SERVER))
    assert "does not know the key" in str(result)


def test_who_knows_the_key_cannot_pose_as_the_host_whose_evidence_was_checked() -> None:
    """The file with the shared key is the operator's; the key of a vault host's life is nobody's."""
    pinned = replace(SERVER, pinned=certificate_hash(HOST))
    one, other = socket.socketpair()
    results = both(lambda: shake(one, pinned), lambda: shake(other, HOST))
    assert all(isinstance(result, SecureChannel) for result in results)
    refused(pinned, stranger_tls("vault_host", credentials_from(SECRET, "vault_host")), "not the one whose evidence")


@pytest.mark.parametrize("role", ["server", "vault_host"])
def test_tls_1_2_is_refused(role: Role) -> None:
    """The right key, the older protocol: no downgrade."""
    honest, identity = (HOST, SERVER) if role == "server" else (SERVER, HOST)
    refused(honest, stranger_tls(role, identity, ssl.TLSVersion.TLSv1_2), "link")


def test_no_session_can_be_resumed() -> None:
    server, host = connected(*socket.socketpair())
    host.send(b"tickets would come before this")
    server.receive()
    session = server._tls.session
    assert session is None or not session.has_ticket


@pytest.mark.parametrize("role", ["server", "vault_host"])
def test_another_protocol_or_version_over_the_same_key_is_refused(role: Role) -> None:
    honest, identity = (HOST, SERVER) if role == "server" else (SERVER, HOST)
    refused(honest, stranger_tls(role, identity, protocol="cloister-link/4"), "another version")


def through(courier: Courier) -> object:
    """Both sides through a courier, one record and an end; what the vault host heard, or the error it raised."""
    server_end, server_wire = socket.socketpair()
    host_end, host_wire = socket.socketpair()
    ways = (("server", server_wire, host_wire), ("host", host_wire, server_wire))
    threads = [threading.Thread(target=courier.carry, args=way) for way in ways]
    for thread in threads:
        thread.start()

    def serve() -> object:
        with server_end:
            channel = establish(server_end, SERVER, LIMIT, patience_s=3)
            channel.send(b"the request")
            channel.end()
            return None

    def host() -> object:
        with host_end:
            channel = establish(host_end, HOST, LIMIT, patience_s=3)
            heard = []
            while (record := channel.receive()) is not None:
                heard.append(bytes(record))
            return heard

    results = both(serve, host)
    for thread in threads:
        thread.join()
    for wire in (server_wire, host_wire):
        wire.close()
    return results[1]


def test_a_recorded_connection_cannot_be_played_again() -> None:
    courier = Courier()
    assert through(courier) == [b"the request"]
    recorded = bytes(courier.carried["server"])

    def replay(ours: socket.socket) -> None:
        ours.sendall(recorded)
        with suppress(OSError):
            while ours.recv(1 << 16):
                pass

    _, result = one_sided(HOST, replay)
    assert isinstance(result, ProtocolError)


def ignored(stream: bytes) -> set[int]:
    """Where TLS ignores a byte: the version in the head of a record that is not sealed yet (RFC 8446, 5.1)."""
    found, begin = set(), 0
    while begin < len(stream):
        if stream[begin] != 23:
            found |= {begin + 1, begin + 2}
        begin += TLS_HEAD + struct.unpack("!H", stream[begin + 3 : begin + 5])[0]
    return found


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["server", "host"]), st.integers(0, 10**6), st.integers(1, 255))
def test_a_connection_altered_at_any_byte_fails(side: str, at: int, flip: int) -> None:
    """From the first byte of the handshake to the last of the end. Where a byte means nothing, nothing changes."""
    clean = Courier()
    assert through(clean) == [b"the request"]
    stream = bytes(clean.carried[side])
    result = through(Courier(side, at % len(stream), flip))
    if at % len(stream) not in ignored(stream):
        assert isinstance(result, ProtocolError)
    else:
        assert isinstance(result, ProtocolError) or result == [b"the request"]


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(40), b"cloister-link/1\n" + bytes(32), bytes(600)]
)
@pytest.mark.parametrize("honest", [SERVER, HOST])
def test_a_stranger_with_another_protocol_is_refused(sent: bytes, honest: Credentials) -> None:
    stranger, end = socket.socketpair()
    stranger.sendall(sent)
    stranger.shutdown(socket.SHUT_WR)
    with stranger, end, pytest.raises(ProtocolError):
        establish(end, honest, LIMIT)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_garbage_is_refused(sent: bytes, like_tls: bool) -> None:
    stranger, end = socket.socketpair()
    stranger.sendall((b"\x16\x03\x01" + struct.pack("!H", len(sent)) if like_tls else b"") + sent)
    stranger.shutdown(socket.SHUT_WR)
    with stranger, end, pytest.raises(ProtocolError):
        establish(end, HOST, LIMIT)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
def test_a_stranger_who_says_nothing_or_too_little_is_not_waited_for(sent: bytes) -> None:
    stranger, end = socket.socketpair()
    with stranger, end:
        stranger.sendall(sent)
        with pytest.raises(ProtocolError, match="in time"):
            establish(end, HOST, LIMIT, patience_s=0.1)


def test_a_stranger_who_says_a_byte_at_a_time_is_not_waited_for() -> None:
    def dribble(ours: socket.socket) -> None:
        with suppress(OSError):
            for byte in b"\x16\x03\x01\x01\x00" + bytes(250):
                ours.sendall(bytes([byte]))
                time.sleep(0.02)

    stranger, end = socket.socketpair()
    with stranger, end:
        thread = threading.Thread(target=dribble, args=(stranger,))
        thread.start()
        with pytest.raises(ProtocolError, match="in time"):
            establish(end, HOST, LIMIT, patience_s=0.3)
        assert thread.is_alive(), "the stranger has not said its last byte"
        end.close()
        thread.join()


# ---- credentials


def test_both_machines_derive_the_same_credentials_and_no_others() -> None:
    assert credentials_from(SECRET, "server") == SERVER and credentials_from(SECRET, "vault_host").peer == HOST.peer
    assert x509.load_pem_x509_certificate(SERVER.own) == x509.load_der_x509_certificate(HOST.peer)
    own, role = x509.load_pem_x509_certificate(HOST.own), x509.load_der_x509_certificate(SERVER.peer)
    own.verify_directly_issued_by(role)
    assert own.public_key() != role.public_key()
    assert credentials_from(SECRET, "vault_host").own != HOST.own, "each life has a key of its own"
    assert len({SERVER.own, HOST.own, other_than("server").own, other_than("vault_host").own}) == 4
    with pytest.raises(SetupError):
        credentials_from(SECRET[:31], "server")


def test_a_bridges_credentials_tell_neither_the_shared_key_nor_the_other_roles_private_one() -> None:
    encoded = msgspec.msgpack.encode(SERVER)
    private = HOST.own.split(b"-----")[2].strip()
    assert SECRET not in encoded and SECRET.hex().encode() not in encoded and private not in encoded
    assert private in HOST.own and repr(SERVER) == "Credentials(…)"


def test_private_keys_pass_through_memory_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create = os.memfd_create

    def keep_a_copy(name: str, flags: int) -> int:
        made.append(create(name, flags))
        return os.dup(made[0])

    monkeypatch.setattr(os, "memfd_create", keep_a_copy)
    one, other = socket.socketpair()
    with one, other:
        SecureChannel(one, SERVER, LIMIT)
    [descriptor] = made
    assert os.pread(descriptor, 10_000, 0) == bytes(len(SERVER.own))
    os.close(descriptor)


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
        server_end = Address(local, address_of(listener).port).connect(5)
    except OSError as reason:
        pytest.skip(f"no vsock loopback in this kernel: {reason}")
    with listener:
        host_end, _ = listener.accept()
    server, host = connected(server_end, host_end)
    server.send(b"through the machine's back door")
    assert bytes(host.receive() or b"") == b"through the machine's back door"
