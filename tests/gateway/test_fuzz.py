"""Schemathesis reads /openapi.json and tries what it allows and what it forbids: no 500, no undocumented answer."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
)

from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from tests.examples import examples
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    ignored_auth,
]


app = create_app(FakeBackend(), ByteTokenizer(), MODEL, GatewaySettings(), created=1)
HOST = {"Host": "localhost"}  # the development server answers to this machine's names only
schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=HOST)


def _aim(case: schemathesis.Case) -> None:
    """What the schema cannot say (the vocabulary, the context) would end most tries early: keep it within bounds."""
    if isinstance(case.body, dict):
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(limit := case.body.get(name), int) and limit > 50:
                case.body[name] = limit % 50 + 1
        if isinstance(bias := case.body.get("logit_bias"), dict):
            case.body["logit_bias"] = {str(int(k) % 257) if k.isdigit() else k: v for k, v in bias.items()}
    if case.path_parameters and "model" in case.path_parameters and len(str(case.path_parameters["model"])) % 2:
        case.path_parameters["model"] = MODEL


@schema.parametrize()
@examples(
    6,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_answered_with_a_500(case: schemathesis.Case) -> None:
    _aim(case)
    case.call_and_validate(headers={**KEY, **HOST}, checks=CHECKS)
