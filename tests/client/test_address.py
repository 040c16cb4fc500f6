import pytest

from cloister.client.address import NodeAddress, names_this_machine
from cloister.errors import SetupError


@pytest.mark.parametrize(
    ("text", "url", "prefix"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        (" https://node.example/v1/ ", "https://node.example:443", ""),
        ("https://node.example/below/v1", "https://node.example:443/below", "/below"),
        ("http://[::1]:9/", "http://[::1]:9", ""),
    ],
)
def test_an_address_is_read_with_or_without_v1(text: str, url: str, prefix: str) -> None:
    address = NodeAddress.parse(text)
    assert (str(address), address.prefix) == (url, prefix)
    assert address.url("/v1/sealed") == f"{url}/v1/sealed"
    assert address.path("/v1/sealed") == f"{prefix}/v1/sealed"


@pytest.mark.parametrize(
    "text",
    [
        *("nonsense", "ftp://node.example", "http://", "http://user@host", "http://:secret@host", "http://host?x=1"),
        *("http://host#part", "http://host:port", "http://höst", "http://host/a b", "http://host/é"),
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SetupError) as refused:
        NodeAddress.parse(text)
    assert "127.0.0.1" in str(refused.value)


def test_the_prefix_of_a_node_is_not_part_of_what_the_node_is_asked() -> None:
    address = NodeAddress.parse("https://node.example/below")
    assert address.endpoint("/below/v1/models") == "/v1/models"
    assert address.endpoint("/belowground/v1/models") == "/belowground/v1/models"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.evil.example", False), ("10.0.0.1", False)],
)
def test_only_loopback_is_this_machine(host: str, local: bool) -> None:
    assert names_this_machine(host) is local
