"""Both users every attempt is made as."""

from __future__ import annotations

import os

import pytest

from tests.process.sandbox.node import User


@pytest.fixture(params=["root", "someone"])
def user(request: pytest.FixtureRequest) -> User:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    return request.param
