"""The lock file of packages: read as it was written, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import SetupError
from cloister.transparency.manifest import Packages, read_packages

HASH = "ab" * 32
LOCK = Packages({"python==3.11.7": HASH, "torch==2.13.0+cpu": HASH}, {HASH: "cc 12.2 | -O3 -shared"})


def test_it_is_read_as_it_was_written() -> None:
    assert read_packages(LOCK.encoded()) == LOCK
    assert read_packages(b"# by hand\n\n" + LOCK.encoded()) == LOCK


@pytest.mark.parametrize(
    "line",
    [
        "torch",
        "torch==1",
        f"torch==1 sha256:{HASH[1:]}",
        f"torch==1 sha256:{HASH} more",
        f"kernels sha256:{HASH}",
        f"torch sha256:{HASH}",
        f"torch==2.13.0+cpu sha256:{'00' * 32}",
    ],
)
def test_a_line_that_names_nothing_is_refused(line: str) -> None:
    with pytest.raises(SetupError):
        read_packages(LOCK.encoded() + line.encode() + b"\n")


@given(st.binary(max_size=300))
def test_anything_is_a_lock_file_or_refused(data: bytes) -> None:
    try:
        read_packages(data)
    except SetupError:
        return
