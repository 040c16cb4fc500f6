"""Schemathesis against the running server and the real model: no request is answered with a 500."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from tests.served import running_server

HEADERS = {"Authorization": "Bearer cloister-dev"}


@pytest.fixture(scope="module")
def live_schema(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A short context keeps the answers to valid requests short."""
    log: Path = tmp_path_factory.mktemp("fuzz") / "log"
    with running_server(log, "--max-context", "64", "--kv-cache-mib", "64") as server:
        yield schemathesis.openapi.from_url(f"{server.url()}/openapi.json")
        assert "Traceback" not in server.said


schema = schemathesis.pytest.from_fixture("live_schema")


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_answered_with_a_500(case: schemathesis.Case) -> None:
    case.call_and_validate(headers=HEADERS, checks=[not_a_server_error])
