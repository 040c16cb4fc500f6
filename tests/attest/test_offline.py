"""The watch over verifiers would notice one that fetches."""

import socket

import pytest

from tests.attest.conftest import nothing_is_fetched


def test_a_verifier_that_fetches_would_be_noticed() -> None:
    watch = nothing_is_fetched.__wrapped__()  # type: ignore[attr-defined]
    next(watch)
    with pytest.raises(OSError, match="reached"):
        socket.create_connection(("certificates.example", 443))
    with pytest.raises(AssertionError):
        next(watch)
