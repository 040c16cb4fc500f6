import pytest

from cloister.bench.address import ServerAddress
from cloister.errors import SetupError


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://example.org", "https://example.org:443"),
        ("http://[::1]:9000/v1", "http://[::1]:9000"),
        ("http://host/api/v1", "http://host:80/api"),
    ],
)
def test_what_users_type_becomes_one_address(text: str, normal: str) -> None:
    assert str(ServerAddress.parse(text)) == normal


def test_the_prefix_stands_before_every_path() -> None:
    assert ServerAddress.parse("http://host/api/v1").path("/v1/models") == "/api/v1/models"


@pytest.mark.parametrize("text", ["", "localhost:8000", "ftp://host", "http://", "http://host:port", "http://u:p@host"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SetupError) as refused:
        ServerAddress.parse(text)
    assert "http://127.0.0.1:8000" in (refused.value.hint or "")
    assert "u:p" not in str(refused.value)
