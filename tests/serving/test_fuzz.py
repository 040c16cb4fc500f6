"""Schemathesis against a running server: no request is answered with a 500. Before a release, with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema

from cloister.channel.envelope import CONTENT_TYPE
from tests.examples import examples
from tests.served import running_server

# Sealed bytes are sent as they are drawn.
schemathesis.serializer.alias(CONTENT_TYPE, "application/octet-stream")

HEADERS = {"Authorization": "Bearer cloister-dev"}
PATIENCE_S = 600
"""With one request: `n` may be large, and the machine busy."""


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=pytest.mark.release)])
def live_schema(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    with ExitStack() as stack:
        if request.param == "small":
            server = request.getfixturevalue("tiny_server")
        else:
            short = ("--max-context", "64", "--kv-cache-mib", "64")  # which keeps the answers to valid requests short
            server = stack.enter_context(running_server(tmp_path_factory.mktemp("fuzz") / "log", *short))
        yield schemathesis.openapi.from_url(f"{server.url()}/openapi.json")
        assert "Traceback" not in server.said


@pytest.mark.slow
def test_no_request_is_answered_with_a_500(live_schema: BaseSchema) -> None:
    attacked = 0
    for found in live_schema.get_all_operations():
        operation = found.ok()

        @examples(8, derandomize=True, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def attack(case: schemathesis.Case) -> None:
            case.call_and_validate(headers=HEADERS, timeout=PATIENCE_S, checks=[not_a_server_error])

        attack()
        attacked += 1
    assert attacked >= 6
