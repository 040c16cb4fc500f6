"""The list of a cloud: one form, one digest, and a node that follows it."""

from pathlib import Path

import pytest

from cloister.access.cloud import Cloud, CloudNode, load_cloud, read_cloud
from cloister.access.token_keys import TokenKey, TokenKeys
from cloister.config import GatewaySettings
from cloister.errors import EvidenceInvalid, SetupError, TokenInvalid
from tests.access.vectors import CHALLENGE, SIGNER, new_token

NODES = tuple(CloudNode(name, f"https://{name}.example") for name in ("one", "two", "three"))
KEYS = TokenKeys(CHALLENGE.issuer, "/token-request", [TokenKey(SIGNER.public, 100, 200)])
CLOUD = Cloud(NODES, KEYS)


def test_the_list_is_read_as_it_was_written_whatever_its_order() -> None:
    assert Cloud.decode(CLOUD.encode()).encode() == CLOUD.encode()
    assert Cloud(NODES[::-1], KEYS).digest == CLOUD.digest


def test_another_node_or_key_is_another_list() -> None:
    other = TokenKeys(CHALLENGE.issuer, "/token-request", [TokenKey(SIGNER.public, 100, 201)])
    assert len({CLOUD.digest, Cloud(NODES[:2], KEYS).digest, Cloud(NODES, other).digest}) == 3


@pytest.mark.parametrize(
    "wrong",
    [b"", b"{}", CLOUD.encode()[:-1], CLOUD.encode() + b" ", CLOUD.encode().replace(b"one", b"two")],
    ids=["empty", "object", "cut", "longer", "twice"],
)
def test_a_list_in_another_form_is_refused(wrong: bytes) -> None:
    with pytest.raises((EvidenceInvalid, TokenInvalid)):
        Cloud.decode(wrong)


def test_a_token_counts_at_the_one_node_that_it_names_while_its_key_does() -> None:
    for token in (new_token() for _ in range(6)):
        chosen = CLOUD.node_of(token).name
        CLOUD.check(token, chosen, 150)
        for other in {"one", "two", "three"} - {chosen}:
            with pytest.raises(TokenInvalid, match="another node"):
                CLOUD.check(token, other, 150)
        for late in (99, 200):
            with pytest.raises(TokenInvalid, match="expired"):
                CLOUD.check(token, chosen, late)


def test_a_node_must_be_in_its_list(tmp_path: Path) -> None:
    path = tmp_path / "cloud.json"
    path.write_bytes(CLOUD.encode())
    assert read_cloud(GatewaySettings(cloud=path, node_name="two")).digest == CLOUD.digest
    with pytest.raises(SetupError, match="node-name"):
        read_cloud(GatewaySettings(cloud=path, node_name="four"))
    path.write_bytes(b"{}")
    with pytest.raises(SetupError, match="no list of a cloud"):
        load_cloud(path)
