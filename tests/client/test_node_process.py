"""Behind a relay all users of a node use the key of one process, which the log names. Another is refused, though
its evidence is as good and though relay and node agree on its key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from cloister import Client
from cloister.addresses import HttpAddress
from cloister.client.verification import INSTANCE
from cloister.errors import VerificationFailed
from cloister.transparency.log import Log
from cloister.transparency.manifest import NodeNamed
from cloister.transparency.note import SigningKey
from tests.client.fake_node import KEY, MODEL, release_in, running
from tests.client.http_server import Received, Reply, Server, reply
from tests.client.oblivious_node import ObliviousNode, between, relayed

ASKED = [{"role": "user", "content": "hello"}]


class Place:
    """One node of a cloud, another process of the same release elsewhere, and the log of both."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._key = folder, SigningKey.generate("development/test")
        release = release_in(folder / "log", key=self._key)
        self.node, self.other = ObliviousNode(release), ObliviousNode(release)
        self.policy = folder / "policy.toml"
        self.policy.write_text(f'[log]\nlogs = ["{release.log_key}"]\n')

    def name(self, process: ObliviousNode) -> None:
        entry = NodeNamed(str(HttpAddress.parse(self.node.url)), process.instance)
        Log.open(self.folder / "log").append(entry.encoded(), self._key)

    def client(self, relay: str, **more: object) -> Client:
        more = {"policy": str(self.policy), "allow_software_tee": True} | more
        return Client(self.node.url, api_key=KEY, relay=relay, max_retries=0, **more)

    @contextmanager
    def steering(self, relay: str) -> Iterator[Server]:
        """A relay that sends this user, and no other, to the other process."""
        with relayed(self.other.url) as away:

            async def change(received: Received, answer: Reply) -> Reply:
                url = away + HttpAddress.parse(self.other.url).resource
                headers = {name: each for name, each in received.headers.items() if name not in ("host", "connection")}
                async with httpx.AsyncClient(timeout=30) as http:
                    got = await http.request(received.method, url, headers=headers, content=received.body)
                return reply(got.status_code, got.content, got.headers.get("content-type", ""))

            with between(relay, change) as one:
                yield one


def said(client: Client) -> str:
    return client.chat.completions.create(model=MODEL, messages=ASKED).choices[0].message.content


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    with running(place.node), running(place.other):
        yield place


@pytest.fixture
def relay(place: Place) -> Iterator[str]:
    with relayed(place.node.url) as url:
        yield url


def test_the_process_that_the_log_names_is_used(place: Place, relay: str) -> None:
    place.name(place.other)
    place.name(place.node)  # the last one counts
    with place.client(relay) as one:
        assert said(one) == "so it is "


def test_another_process_with_evidence_as_good_gets_nothing(place: Place, relay: str) -> None:
    place.name(place.node)
    with place.steering(relay) as seen, pytest.raises(VerificationFailed) as failed:
        place.client(seen.url)
    assert failed.value.checks == (INSTANCE,) and place.other.evidence_asked == 1
    assert not place.other.opened and not place.node.opened


def test_control_where_the_log_names_none_that_evidence_is_good(place: Place, relay: str) -> None:
    with place.steering(relay) as seen, place.client(seen.url, policy=None) as one:
        assert said(one) == "so it is "
    assert len(place.other.opened) == 1


def test_one_key_configuration_is_not_taken_on_the_relays_word(place: Place, relay: str) -> None:
    with pytest.raises(VerificationFailed, match="names no process") as failed:
        place.client(relay)
    assert failed.value.checks == (INSTANCE,) and not place.node.opened


def test_a_node_that_started_again_waits_for_its_entry(place: Place, relay: str) -> None:
    """What the client learned from the log before does not count: the entry may be stale."""
    place.name(place.node)
    with place.client(relay) as one:
        said(one)
        place.node.restart()
        with pytest.raises(VerificationFailed) as failed:
            said(one)
        assert failed.value.checks == (INSTANCE,) and len(place.node.opened) == 1
        place.name(place.node)
        assert said(one) == "so it is "


def test_entries_that_no_checkpoint_covers_do_not_count(
    place: Place, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may send anything beside its proof."""
    real = place.node.evidence
    entry = NodeNamed(str(HttpAddress.parse(place.node.url)), place.node.instance).encoded()

    def forged(nonce: bytes, since: int) -> object:
        made = real(nonce, since)
        proof = msgspec.structs.replace(made.release, later=(entry,))
        return msgspec.structs.replace(made, release=proof)

    monkeypatch.setattr(place.node, "evidence", forged)
    with pytest.raises(VerificationFailed) as failed:
        place.client(relay)
    assert "log revocation" in failed.value.checks and not place.node.opened
