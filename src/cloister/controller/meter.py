"""Meters what tenants ask for: each call is checked against its tenant's quota, and counted once, when it ends."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import time

from cloister.config import ControllerSettings, data_folder
from cloister.controller.books import OTHERS, Books
from cloister.controller.quotas import Hold, Quota, Quotas
from cloister.controller.requests import OWN_TENANTS, Request, RequestMeter, frontend_of, params_of
from cloister.errors import CloisterError, QuotaExceeded
from cloister.fairness import ANONYMOUS
from cloister.levels import LEVELS
from cloister.messages.controller_frontend import Ask, KeyEntry, Serving, SubmitTokens
from cloister.messages.prompts import ObfuscationParams
from cloister.usage import ALL_LEVELS, FILE, Counts, Place

log = logging.getLogger(__name__)
TOKENS = "(tokens)"  # all calls that anonymous tokens pay for; no key's tenant has such a name


@dataclass(eq=False, slots=True)
class _Call:
    """A prompt with its answers, each a request. At `obfuscated` all sequences count, the real one and the others."""

    place: Place
    hold: Hold | None
    longest: tuple[int, ...]  # of each answer, in tokens
    unended: int
    prompt: int = 0
    made: int = 0
    refused: bool = True


class Meter(RequestMeter):
    def __init__(
        self, settings: ControllerSettings, serving: Callable[[], Serving], clock: Callable[[], float] = time
    ) -> None:
        self._serving, self._path = serving, settings.usage
        self.quotas = Quotas(Quota(settings.tokens_a_day, settings.requests_a_day), clock)
        self.books = Books(clock)
        self._tenants: frozenset[str] = frozenset()
        self._calls: dict[int, _Call] = {}

    def admit(self, keys: tuple[KeyEntry, ...]) -> None:
        """SetupError if the file is unusable at the node's start; later that is logged, and quotas hold in memory."""
        first, self._tenants = not self._tenants, frozenset(key.tenant for key in keys)
        self.quotas.admit(keys)
        if self.books.open or not (self._path or self.quotas):
            return
        try:
            used = self.books.open_file(self._path or data_folder() / FILE)
        except CloisterError as wrong:
            if first:
                raise
            log.error("Usage is not counted. %s", wrong)
        else:
            if first:
                self.quotas.begin(used)

    def begin(self, ask: Ask | SubmitTokens, longest_prompt: int) -> None:
        """Reserve what the call may take. QuotaExceeded."""
        if ask.tenant in OWN_TENANTS:
            return
        params, context = params_of(ask), self._serving().max_context
        longest = tuple(min(each.max_tokens, context) for each in params.values())
        place, hold = self._place(ask), None
        if place.tenant != TOKENS:
            fakes = 0
            if isinstance(ask, Ask) and LEVELS[ask.level].obfuscates:
                fakes = (ask.obfuscation or ObfuscationParams()).fakes
            try:
                hold = self.quotas.reserve(ask.tenant, (1 + fakes) * (min(longest_prompt, context) + sum(longest)))
            except QuotaExceeded:
                self.books.add(place, Counts(refused=1))
                raise
        self._calls |= dict.fromkeys(params, _Call(place, hold, longest, len(params)))

    def accepted(self, request: Request, prompt_tokens: int, sequences: int) -> None:
        if (call := self._calls.get(request.request_id)) is not None and call.hold is not None:
            room = self._serving().max_context - prompt_tokens
            answers = sum(min(each, room) for each in call.longest)
            self.quotas.resize(request.tenant, call.hold, sequences * (prompt_tokens + answers))

    def left(self, request_id: int, request: Request | None = None, *, refused: bool = False) -> None:
        if (call := self._calls.pop(request_id, None)) is None:
            return
        if request is not None and request.accepted:
            call.prompt = max(call.prompt, request.sequences * request.prompt_tokens)
            call.made += request.output_tokens.total()
        call.refused &= refused
        call.unended -= 1
        if call.unended:
            return
        counts = Counts(refused=1) if call.refused else Counts(1, 0, call.prompt, call.made)
        if call.hold is not None:
            self.quotas.settle(call.hold, call.prompt + call.made, counts=not call.refused)
        self.books.add(call.place, counts)

    def leave_all_of(self, frontend: int) -> None:
        """Requests that waited still."""
        for request_id in [one for one in self._calls if frontend_of(one) == frontend]:
            self.left(request_id)

    async def close(self) -> None:
        await self.books.close()

    def _place(self, ask: Ask | SubmitTokens) -> Place:
        day = self.quotas.today().isoformat()
        if ask.tenant.startswith(ANONYMOUS):
            return Place(day, TOKENS, ALL_LEVELS)
        return Place(day, ask.tenant if ask.tenant in self._tenants else OTHERS, ask.level)
