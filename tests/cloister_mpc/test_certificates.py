from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import CloisterError, SetupError, Unauthorized
from cloister_mpc.certificates import (
    Credentials,
    Keys,
    Role,
    client_tls,
    fingerprint,
    make_keys,
    require,
    role_of,
    server_tls,
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("foreign"))


def met(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[Role | Exception, ssl.SSLSocket | Exception]:
    """What the server learns of the client, and the client's connection."""
    near, far = socket.socketpair()
    seen: list[Role | Exception] = []

    def accept() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as accepted:
                seen.append(role_of(accepted))
                accepted.sendall(b"welcome")
                accepted.recv(1)
        except (OSError, CloisterError) as reason:
            seen.append(reason)
            far.close()

    thread = threading.Thread(target=accept)
    thread.start()
    connection: ssl.SSLSocket | Exception
    try:
        connection = client.wrap_socket(near)
        assert connection.recv(7) == b"welcome"
    except (OSError, AssertionError) as reason:
        connection = reason
    near.close() if isinstance(connection, Exception) else connection.close()
    thread.join()
    return seen[0], connection


def authority(keys: Keys) -> Path:
    return keys.folder / "ca.crt"


@pytest.mark.parametrize("role", [Role("party", "1"), Role("provider"), Role("client", "clerk")])
def test_a_party_learns_the_role_of_who_connects(ours: Keys, role: Role) -> None:
    server = server_tls(authority(ours), ours.of(Role("party", "0")))
    seen, connection = met(server, client_tls(authority(ours), ours.of(role)))
    assert seen == role and isinstance(connection, ssl.SSLSocket)


def test_a_foreign_authoritys_certificate_is_refused(ours: Keys, foreign: Keys) -> None:
    server = server_tls(authority(ours), ours.of(Role("party", "0")))
    impostor = client_tls(authority(ours), foreign.of(Role("party", "1")))
    seen, connection = met(server, impostor)
    assert isinstance(seen, ssl.SSLError) and isinstance(connection, Exception)


def test_nobody_connects_without_a_certificate(ours: Keys) -> None:
    server = server_tls(authority(ours), ours.of(Role("party", "0")))
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(authority(ours))
    seen, connection = met(server, bare)
    assert isinstance(seen, ssl.SSLError) and isinstance(connection, Exception)


def test_a_foreign_server_is_refused(ours: Keys, foreign: Keys) -> None:
    server = server_tls(authority(ours), foreign.of(Role("party", "0")))
    _, connection = met(server, client_tls(authority(ours), ours.of(Role("party", "1"))))
    assert isinstance(connection, ssl.SSLCertVerificationError)


def test_old_tls_is_not_spoken(ours: Keys) -> None:
    server = server_tls(authority(ours), ours.of(Role("party", "0")))
    old = client_tls(authority(ours), ours.of(Role("party", "1")))
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    seen, _ = met(server, old)
    assert isinstance(seen, ssl.SSLError)


@pytest.mark.parametrize(
    ("role", "pinned", "right"),
    [
        (Role("party", "0"), "", True),
        (Role("party", "0"), "its own", True),
        (Role("party", "0"), "00" * 32, False),
        (Role("party", "1"), "", False),
        (Role("provider"), "", False),
    ],
)
def test_who_answers_must_be_the_party_that_was_called(ours: Keys, role: Role, pinned: str, right: bool) -> None:
    own = ours.of(Role("party", "0"))
    server = server_tls(authority(ours), own)
    client = client_tls(authority(ours), ours.client())
    near, far = socket.socketpair()

    def accept() -> None:
        with server.wrap_socket(far, server_side=True) as accepted:
            accepted.recv(1)

    thread = threading.Thread(target=accept)
    thread.start()
    pinned = fingerprint(own.certificate) if pinned == "its own" else pinned
    with client.wrap_socket(near) as connection:
        if right:
            require(connection, role, pinned)
        else:
            with pytest.raises(Unauthorized):
                require(connection, role, pinned)
    thread.join()


@given(st.text(max_size=80))
def test_only_our_own_uris_are_roles(text: str) -> None:
    role = Role.parse(text)
    assert role is None or role.uri == text


@pytest.mark.parametrize(
    "uri", ["cloister-mpc:party/3", "cloister-mpc:party/", "cloister-mpc:client/", "cloister-mpc:provider/x"]
)
def test_roles_there_are_not(uri: str) -> None:
    assert Role.parse(uri) is None


def test_keys_are_never_overwritten(ours: Keys) -> None:
    with pytest.raises(SetupError, match="exists already"):
        make_keys(ours.folder)


def test_keys_that_cannot_be_read_are_told_by_name(tmp_path: Path, ours: Keys) -> None:
    with pytest.raises(SetupError, match=r"nothing\.key"):
        client_tls(authority(ours), Credentials(tmp_path / "nothing.crt", tmp_path / "nothing.key"))
