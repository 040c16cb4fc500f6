"""The content key's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister.sealed_weights.file import key_check, new_content_key, read_content_key

KEY = bytes(range(32))


def test_key_file_round_trip(tmp_path: Path) -> None:
    key = new_content_key(tmp_path / "keys" / "content")
    assert read_content_key(tmp_path / "keys" / "content") == key
    assert (tmp_path / "keys" / "content").stat().st_mode & 0o777 == 0o600
    assert new_content_key(tmp_path / "other") != key


def test_a_key_file_is_never_overwritten_and_never_shared(tmp_path: Path) -> None:
    path = tmp_path / "content"
    new_content_key(path)
    with pytest.raises(SetupError, match="cannot be written"):
        new_content_key(path)
    path.chmod(0o640)
    with pytest.raises(SetupError, match="Others may read"):
        read_content_key(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"CLOISTER+WEIGHTS+KEY+", b"CLOISTER+WEIGHTS+KEY+AAAA\n", b"\xff" * 80]
)
def test_what_is_no_key_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "content"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SetupError, match="does not hold a content key"):
        read_content_key(path)


def test_key_check_tells_keys_apart_and_nothing_else() -> None:
    assert key_check(KEY) == key_check(bytearray(KEY)) != key_check(bytes(32))
    assert key_check(KEY) not in KEY
