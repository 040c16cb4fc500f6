"""What goes wrong with files is said with a next step that helps."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister.files import needed, write_private


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Make room"),
        (errno.EROFS, "read-only"),
        (errno.EEXIST, "Name a new file."),
        (errno.EACCES, "Name"),
    ],
)
def test_a_full_disk_is_not_answered_with_another_name(number: int, advice: str) -> None:
    with pytest.raises(SetupError) as told, needed("It cannot be written", "Name a new file."):
        raise OSError(number, os.strerror(number))
    assert advice in str(told.value.hint)


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"first")
    with pytest.raises(SetupError, match="Name a new file"):
        write_private(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
