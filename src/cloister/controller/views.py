"""What the service got and made of each request, for its user. A last view stays KEPT_S, without the prompt where the
service got it whole; it goes sooner with session or frontend, at `forget`, or for newer ones."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from cloister.controller.requests import Request, Requests
from cloister.controller.sessions import SessionKey
from cloister.link.memory import LinkShape
from cloister.messages.controller_frontend import Serving, View

KEPT_S = 10.0
MOST_TOKENS = 1 << 20  # in all last views together: about 40 MB


@dataclass(frozen=True, slots=True)
class LastView:
    view: View
    tenant: str
    session: SessionKey | None

    @property
    def tokens(self) -> int:
        return len(self.view.prompt) + len(self.view.output) + sum(map(len, self.view.streams))


class Views:
    def __init__(
        self, requests: Requests, shape: Callable[[], LinkShape | None], serving: Callable[[], Serving]
    ) -> None:
        self._requests, self._shape, self._serving = requests, shape, serving
        self._last: dict[int, LastView] = {}
        self._tokens = 0

    def of(self, request_id: int) -> View:
        if (request := self._requests.get(request_id)) is not None:
            return self._made_now(request)
        last = self._last.get(request_id)
        return View(request_id, known=False) if last is None else last.view

    def keep(self, request: Request) -> None:
        view = self._made_now(request)
        if not view.known:
            return
        if not request.level.uses_vault:
            view = replace(view, prompt=(), found=0, found_shared=0, labels=b"", tiers=b"", categories=b"")
        session = request.session.key if request.session is not None else None
        self._last[request.request_id] = last = LastView(view, request.tenant, session)
        self._tokens += last.tokens
        while self._tokens > MOST_TOKENS:
            self._drop(next(iter(self._last)))  # the oldest
        asyncio.get_running_loop().call_later(KEPT_S, self._drop, request.request_id)

    def forget(self, concerned: Callable[[int, LastView], bool]) -> None:
        for request_id in [each for each, last in self._last.items() if concerned(each, last)]:
            self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        if (last := self._last.pop(request_id, None)) is not None:
            self._tokens -= last.tokens

    def _made_now(self, request: Request) -> View:
        """A row: a query of one layer, all heads in fp32; its answer has m and γ too. The first token took none."""
        shape = self._shape()
        if request.holder != "service" or shape is None:
            return View(request.request_id, known=False)
        made = [tuple(request.made.get(number, ())) for number in range(request.sequences)]
        rows = sum(max(0, len(tokens) - 1) for tokens in made) * shape.layers if request.exposed else 0
        unsaid = request.shared if request.level.name in self._serving().quantised else 0
        return View(
            request.request_id,
            known=True,
            prompt=request.shown,
            output=made[0] if request.sequences == 1 else (),
            streams=tuple(made) if request.sequences > 1 else (),
            asked_rows=rows,
            asked_bytes=rows * shape.heads * shape.dim * 4,
            answered_rows=rows,
            answered_bytes=rows * shape.heads * (shape.dim + 2) * 4,
            layers=shape.layers,
            found=request.cached - unsaid,
            found_shared=request.shared - unsaid,
            labels=request.labels.labels,
            tiers=request.labels.tiers,
            categories=request.labels.categories,
        )
