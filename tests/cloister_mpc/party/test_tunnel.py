"""Two tunnels between two stand-ins for engines: bytes go through, and nobody else gets in."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from cloister.link.network.address import Address
from cloister.messages.frames import encode_frame
from cloister.process.blocking import BlockingEndpoint
from cloister_mpc.certificates import Credentials, Keys, Role, client_tls, make_keys
from cloister_mpc.config import PartiesConfig
from cloister_mpc.local_parties import KEYS, make_local
from cloister_mpc.messages import Established, FromTunnel, Listening, StartTunnel
from tests.link.strangers import closes, strangers

KEY = b"k" * 16


class Tunnel:
    def __init__(self, config: PartiesConfig, rank: int, folder: Path, key: bytes = KEY) -> None:
        folder.mkdir()
        self.folder = folder
        self.control, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cloister_mpc.party.tunnel", str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self.control.sendall(encode_frame((StartTunnel(msgspec.json.encode(config), rank, str(folder), key),)))
        assert isinstance(BlockingEndpoint(self.control, FromTunnel).next(), Listening)

    def engine(self) -> socket.socket:
        """Where an engine would listen."""
        door = socket.socket(socket.AF_UNIX)
        door.bind(str(self.folder / "engine.sock"))
        door.listen()
        door.settimeout(10)
        return door

    def to(self, rank: int) -> socket.socket:
        """An engine's own connection towards another's."""
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(10)
        line.connect(str(self.folder / f"to-{rank}.sock"))
        return line

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


@dataclass
class Pair:
    config: PartiesConfig
    keys: Keys
    tunnels: list[Tunnel]
    door: socket.socket

    def address(self) -> Address:
        return Address.parse(self.config.party[1].link)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    config = make_local(folder)
    tunnels = [Tunnel(config, rank, folder / f"t{rank}") for rank in range(2)]
    door = tunnels[1].engine()
    yield Pair(config, Keys(folder / KEYS), tunnels, door)
    door.close()
    for tunnel in tunnels:
        tunnel.close()


def test_bytes_go_through_both_ways_whatever_their_number(pair: Pair) -> None:
    with pair.tunnels[0].to(1) as near:
        far, _ = pair.door.accept()
        far.settimeout(10)
        for size in (1, 17, 5_000_000):
            for source, sink in ((near, far), (far, near)):
                sent = os.urandom(size)
                thread = threading.Thread(target=source.sendall, args=(sent,))
                thread.start()
                got = bytearray()
                while len(got) < size:
                    got += sink.recv(1 << 16)
                thread.join()
                assert bytes(got) == sent
        far.close()
        assert near.recv(1) == b""


def test_a_reader_that_rests_holds_up_the_writer_and_loses_nothing(pair: Pair) -> None:
    sent = os.urandom(30_000_000)
    with pair.tunnels[0].to(1) as near:
        far, _ = pair.door.accept()
        thread = threading.Thread(target=near.sendall, args=(sent,))
        near.settimeout(60)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive(), "30 MB fit into buffers"
        far.settimeout(30)
        got = bytearray()
        while len(got) < len(sent):
            got += far.recv(1 << 20)
        thread.join()
        assert bytes(got) == sent
        far.close()


def nobody_came(pair: Pair) -> bool:
    pair.door.settimeout(0.5)
    try:
        pair.door.accept()[0].close()
    except TimeoutError:
        return True
    finally:
        pair.door.settimeout(10)
    return False


@pytest.mark.parametrize(
    "garbage",
    [b"GET /health HTTP/1.1\r\n\r\n", b"PRPC\0\0\0\x10\0\0\0\x08", b"\x16\x03\x01\xff\xff" + b"\0" * 600, b"\0" * 5000],
    ids=["http", "brpc", "almost TLS", "zeros"],
)
def test_plaintext_and_garbage_are_closed(pair: Pair, garbage: bytes) -> None:
    """SPU's own port would have answered the first two, with TLS switched on."""
    with pair.address().connect(10) as stranger:
        stranger.sendall(garbage)
        stranger.settimeout(30)
        answer = b"?"
        try:
            stranger.shutdown(socket.SHUT_WR)
            while answer := stranger.recv(4096):
                assert answer[:1] == b"\x15", "anything but a TLS alert"
        except OSError:
            pass
    assert nobody_came(pair)


def enters(pair: Pair, context: ssl.SSLContext, key: bytes) -> bool:
    """Whether bytes of this stranger would reach the engine."""
    try:
        with context.wrap_socket(pair.address().connect(10)) as line:
            line.sendall(key)
            return not nobody_came(pair)
    except OSError:
        return not nobody_came(pair)


def authority(pair: Pair) -> Path:
    return pair.config.path(pair.config.authority)


def test_the_other_party_enters_with_the_epochs_key(pair: Pair) -> None:
    assert enters(pair, client_tls(authority(pair), pair.keys.of(Role("party", "0"))), KEY)


def test_an_earlier_epochs_key_does_not(pair: Pair) -> None:
    assert not enters(pair, client_tls(authority(pair), pair.keys.of(Role("party", "0"))), b"o" * 16)


@pytest.mark.parametrize("role", [Role("party", "1"), Role("provider"), Role("client", "clerk")])
def test_other_roles_do_not(pair: Pair, role: Role) -> None:
    assert not enters(pair, client_tls(authority(pair), pair.keys.of(role)), KEY)


def test_a_foreign_authority_does_not(pair: Pair, tmp_path: Path) -> None:
    foreign = make_keys(tmp_path / "foreign")
    context = client_tls(authority(pair), foreign.of(Role("party", "0")))
    assert not enters(pair, context, KEY)


def test_nor_does_anyone_without_a_certificate(pair: Pair) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    assert not enters(pair, bare, KEY)


def test_silent_strangers_keep_neither_the_other_party_nor_the_engine_out(pair: Pair) -> None:
    """Strangers at both tunnels: the engine dials out through one, and the other lets it in."""
    near, far = (Address.parse(place.link) for place in pair.config.party[:2])
    with strangers(near), strangers(far), pair.tunnels[0].to(1) as line:
        door, _ = pair.door.accept()
        with door:
            line.sendall(b"a share")
            assert door.recv(7) == b"a share"


def test_who_does_not_prove_itself_in_time_is_dropped(pair: Pair) -> None:
    with strangers(pair.address(), 4) as came:
        assert all(closes(one) for one in came)


def test_a_party_that_never_says_the_epochs_key_is_dropped(pair: Pair) -> None:
    context = client_tls(authority(pair), pair.keys.of(Role("party", "0")))
    with context.wrap_socket(pair.address().connect(10)) as line:
        assert closes(line)
    assert nobody_came(pair)


def test_nor_another_certificate_of_the_same_authority_where_one_is_pinned(tmp_path: Path) -> None:
    """Whoever holds the authority's key cannot stand in for a party that the settings pin."""
    config = make_local(tmp_path)
    pinned = msgspec.structs.replace(config.party[0], fingerprint="ab" * 32)
    tunnel = Tunnel(msgspec.structs.replace(config, party=(pinned, *config.party[1:])), 1, tmp_path / "t1")
    door = tunnel.engine()
    pair = Pair(config, Keys(tmp_path / KEYS), [tunnel, tunnel], door)
    try:
        assert not enters(pair, client_tls(authority(pair), pair.keys.of(Role("party", "0"))), KEY)
    finally:
        door.close()
        tunnel.close()


def test_a_tunnel_does_not_carry_to_a_false_party(tmp_path: Path) -> None:
    """What answers at the other party's address must be that party: here it is a client of the same authority."""
    config = make_local(tmp_path)
    keys = Keys(tmp_path / KEYS)
    tunnel = Tunnel(config, 0, tmp_path / "t0")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    false: Credentials = keys.client()
    context.load_cert_chain(false.certificate, false.key)
    door = Address.parse(config.party[1].link).listen()
    heard: list[bytes] = []

    def impersonate() -> None:
        try:
            with context.wrap_socket(door.accept()[0], server_side=True) as line:
                heard.append(line.recv(100))
        except OSError:
            heard.append(b"")

    thread = threading.Thread(target=impersonate)
    thread.start()
    try:
        with tunnel.to(1) as line, suppress(ConnectionError):
            line.sendall(b"a share")
            assert line.recv(1) == b""
        thread.join(10)
        assert heard == [b""]
    finally:
        door.close()
        tunnel.close()


def test_once_established_the_end_of_a_line_is_the_end_of_the_tunnel(tmp_path: Path) -> None:
    config = make_local(tmp_path)
    tunnels = [Tunnel(config, rank, tmp_path / f"t{rank}") for rank in range(2)]
    door = tunnels[1].engine()
    try:
        first = tunnels[0].to(1)
        door.accept()[0].close()
        assert first.recv(1) == b"" and tunnels[0].process.poll() is None
        line = tunnels[0].to(1)
        far, _ = door.accept()
        for tunnel in tunnels:
            tunnel.control.sendall(encode_frame((Established(),)))
        far.sendall(b"x")
        assert line.recv(1) == b"x"
        time.sleep(0.2)
        tunnels[1].process.kill()
        assert tunnels[0].process.wait(10) == 0
    finally:
        door.close()
        for tunnel in tunnels:
            tunnel.close()
