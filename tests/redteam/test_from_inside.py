"""A vault or a service that turns evil: everything it could try from inside, in real children of the real fork server.

Each attempt is made in a fresh sealed child and must be refused or end that child. The same attempts with a layer of
the sandbox left out on purpose succeed: the tests are able to go red.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import pytest

from cloister.config import EngineSettings
from cloister.link.memory import LinkMemory
from cloister.models.source import ModelFolder
from cloister.process.sandbox.layers import Layer
from tests.forkserver.line import PATIENCE_S
from tests.forkserver.model import save_model
from tests.forkserver.talk import Child, Controller
from tests.redteam.inside import ATTEMPTS, WORDS

Role = Literal["vault", "service"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = EngineSettings(dtype="fp32", threads=2, kv_cache_mib=4, vault_kv_mib=4, chunk_tokens=32)
OF_VAULT = {"write_question_from_vault", "make_question_writable_in_vault"}
OF_SERVICE = {name for name in ATTEMPTS if name.endswith("_service")}
HARMLESS = {"speak_to_standard_output", "write_question_from_service", "signal_by_file_flags"}
"""These succeed, to no effect or rightly so; they have tests of their own."""

OF_TWO = {f"hear_by_{word}": f"signal_by_{word}" for word in WORDS} | {"hear_by_list": "signal_by_weights"}
"""Two siblings conspire: one sleeps on a word that both can read, the other wakes it."""

WITHOUT: dict[str, frozenset[Layer]] = {
    "filter": frozenset({Layer.SECCOMP}),
    "walls": frozenset(
        {
            *(Layer.SECCOMP, Layer.LANDLOCK, Layer.RLIMITS, Layer.CLOSED_DESCRIPTORS),
            *(Layer.EMPTY_ROOT, Layer.MOUNT_NAMESPACE, Layer.PID_NAMESPACE),
        }
    ),
}
SUCCEEDS = {
    "filter": {
        *("open_internet_socket", "open_local_socket", "make_socket_pair", "open_netlink", "send_descriptor"),
        *("map_executable", "make_executable", "become_dumpable", "set_limit", "get_handle_of_process"),
    },
    "walls": {
        *("fork", "fork_by_raw_call", "start_thread", "create_memory_file", "read_file"),
        *("map_by_guessed_descriptor", "write_by_guessed_descriptor", "signal_parent", "signal_others"),
    },
}


@dataclass(frozen=True)
class Outcome:
    error: str | None = None
    signal: bool = False

    @property
    def succeeded(self) -> bool:
        return self.error is None and not self.signal


class Node:
    """A fork server of children that attempt what they are told, beside a neighbour that lives on."""

    def __init__(self, folder: ModelFolder, output: Path) -> None:
        self._output: IO[bytes] = output.open("wb")
        self.output = output
        self.controller = Controller(folder, SETTINGS, module="tests.redteam.inside", output=self._output)
        self.neighbour = self._sealed("vault")

    def _sealed(self, role: Role) -> Child:
        child = self.controller.spawn(role)
        assert child.line.socket.recv(64) == b"sealed\n"
        return child

    def attempt(self, name: str, role: Role) -> Outcome:
        return self.begin(name, role)()

    def begin(self, name: str, role: Role) -> Callable[[], Outcome]:
        """Have it attempted in a fresh child; what came of it."""
        child = self._sealed(role)
        hosts = [self.neighbour.pid, self.controller.process.pid, os.getpid()]
        order = json.dumps({"attempt": name, "pids": hosts}).encode()
        link = LinkMemory(self.controller.shape)
        descriptors = list(link.service_descriptors) if role == "service" else []
        socket.send_fds(child.line.socket, [order], descriptors)
        return partial(self._outcome, child, link)

    def _outcome(self, child: Child, link: LinkMemory) -> Outcome:
        said: dict[str, Any] = {}
        with child.line.socket.makefile("rb") as lines:
            for line in lines:
                if line.strip():  # an empty one came with a descriptor
                    said = json.loads(line)
        link.close()
        assert child.ended(PATIENCE_S)
        assert not self.neighbour.ended(0)
        assert "broken" not in said, said
        return Outcome(said["error"]) if said else Outcome(signal=True)

    def close(self) -> None:
        self.controller.close()
        self._output.close()


@contextmanager
def node_without(layers: frozenset[Layer], folder: ModelFolder, output: Path) -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOISTER_TEST_WITHOUT", " ".join(layers))
        made = Node(folder, output)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def node(tiny: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_without(frozenset(), tiny, tmp_path_factory.mktemp("said") / "output") as made:
        yield made


@pytest.mark.parametrize("role", ["vault", "service"])
@pytest.mark.parametrize("name", sorted(set(ATTEMPTS) - HARMLESS - {*OF_TWO, *OF_TWO.values()}))
def test_it_is_refused_or_ends_whoever_tries(node: Node, name: str, role: Role) -> None:
    if name in (OF_SERVICE if role == "vault" else OF_VAULT):
        pytest.skip("the other role's piece of the link")
    assert not node.attempt(name, role).succeeded


@pytest.mark.parametrize("role", ["vault", "service"])
def test_what_it_prints_reaches_nobody(node: Node, role: Role) -> None:
    node.attempt("speak_to_standard_output", role)
    assert b"secret" not in node.output.read_bytes()


@pytest.mark.parametrize("role", ["vault", "service"])
def test_flags_of_its_files_are_seen_by_no_sibling(node: Node, role: Role) -> None:
    assert node.attempt("signal_by_file_flags", "vault").succeeded
    assert not node.attempt("see_file_flags", role).succeeded


def conspire(node: Node, hears: str) -> list[bool]:
    """Whether a vault was woken, and whether the service woke one."""
    both = node.begin(hears, "vault"), node.begin(OF_TWO[hears], "service")
    return [outcome().succeeded for outcome in both]


@pytest.mark.parametrize("hears", OF_TWO)
def test_no_sibling_is_woken_by_a_futex_on_what_all_map(node: Node, hears: str) -> None:
    assert conspire(node, hears) == [False, False]


def test_the_service_writes_its_own_piece_of_a_link(node: Node) -> None:
    """The attempts on links fail for want of permission, not for want of a link."""
    assert node.attempt("write_question_from_service", "service").succeeded


@pytest.mark.parametrize("missing", SUCCEEDS)
def test_without_layers_attempts_succeed(missing: str, tiny: ModelFolder, tmp_path: Path) -> None:
    with node_without(WITHOUT[missing], tiny, tmp_path / "output") as weak:
        for name in sorted(SUCCEEDS[missing]):
            assert weak.attempt(name, "vault").succeeded, name
        if missing == "filter":
            for hears in OF_TWO:
                assert conspire(weak, hears) == [True, True], hears
        if Layer.CLOSED_DESCRIPTORS in WITHOUT[missing]:
            weak.attempt("speak_to_standard_output", "vault")
            assert b"secret" in weak.output.read_bytes()
