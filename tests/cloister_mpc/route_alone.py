"""The route of `mpc` without a relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from cloister.controller.requests import Requests
from cloister.controller.routes import base
from cloister.controller.vault_side import PendingRequest
from cloister.messages.controller_frontend import Ask
from cloister.messages.types import SamplingParams
from cloister_mpc.client_keeper import MpcRoute
from tests.controller.fakes import SERVING


class MpcOnly:
    """The route of `mpc` by itself: what it tells goes to `tell`."""

    def __init__(self, tell: Callable[[msgspec.Struct], None], vocabulary: int) -> None:
        requests = Requests(tell, lambda: replace(SERVING, vocabulary=vocabulary), lambda request: None)
        nobody: Any = None
        self.route = MpcRoute(base.Node(requests, nobody, lambda: SERVING, nobody))

    def ask(self, request_id: int, prompt: bytes, params: SamplingParams) -> None:
        self.route.ask(PendingRequest(Ask(request_id, "ann", "mpc", "s", False, b"", params), prompt))
