"""Routes what the processes say of requests: fronts, vaults and the service on all sides, one route a level between.

Prompts pass as opaque bytes, answers as token ids; neither is kept here. What one process may say of a request is
checked by the request's route: a vault or service that lies is ended (its endpoint raises).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from cloister.config import ControllerSettings
from cloister.controller.line import Line
from cloister.controller.numbering import FRONT_BITS, front_of, local, wide
from cloister.controller.referee import Referee
from cloister.controller.requests import Request, Requests
from cloister.controller.routes.base import Asked, Node, Route
from cloister.controller.routes.isolated import IsolatedRoute
from cloister.controller.routes.mpc import MpcRoute
from cloister.controller.routes.open import OpenRoute
from cloister.controller.routes.partitioned import PartitionedRoute
from cloister.controller.routes.vault import VaultRoute
from cloister.controller.service import Service
from cloister.controller.sessions import Session, SessionKey, Sessions
from cloister.controller.vaults import Vault, Vaults
from cloister.controller.wording import in_own_words
from cloister.errors import ProtocolError, QueueFull, ServiceUnavailable, VaultLost
from cloister.levels import Decodes
from cloister.messages.front import Ask, EndSession, Serving
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Stats, Submit, Tokens
from cloister.messages.parlour import AskSealed
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.service import AskView, Paused, View
from cloister.messages.vault import FloorDone, LinkBroken, Prefilled, Release, Understood, WantFloor


class Front(Protocol):
    """A gateway or the parlour, as far as the relay is concerned."""

    def send(self, message: msgspec.Struct) -> None: ...
    def send_soon(self, message: msgspec.Struct) -> None: ...


def _nothing_is_sealed(prompt: SealedPrompt) -> LockedPrompt:
    raise ProtocolError("There is no sealed prompt.")


class Relay:
    """All requests of all fronts. `lock` gives a sealed prompt with its key, when a vault is to have it."""

    def __init__(
        self,
        settings: ControllerSettings,
        serving: Callable[[], Serving],
        cores: int,
        lock: Callable[[SealedPrompt], LockedPrompt] = _nothing_is_sealed,
    ) -> None:
        self._lock = lock
        self._fronts: dict[int, Front] = {}
        self._front_numbers = itertools.count(1)
        self._line = Line(settings.max_waiting_for_vaults, self._confide)
        self._views: Counter[int] = Counter()
        self.requests = Requests(self._tell, lambda: serving().vocabulary, self._ended)
        self.referee = Referee(cores, settings.vault_deadline_s, settings.service_deadline_s)
        self.vaults = Vaults(settings.spare_vaults, settings.vault_ready_s, self._from_vault, self._vault_ended)
        self.sessions = Sessions(
            self.vaults, settings.max_vaults, settings.session_idle_s, self._session_begins, self._session_ended
        )
        self._node = Node(self.requests, self.sessions, serving)
        self._open = OpenRoute(self._node)
        self._partitioned = PartitionedRoute(self._node)
        self.mpc = MpcRoute(self._node)
        routes: tuple[Route, ...] = (self._open, self._partitioned, IsolatedRoute(self._node), self.mpc)
        self.routes: dict[str, Route] = {route.level.name: route for route in routes}

    def _route_of(self, request: Request) -> Route:
        return self.routes[request.level.name]

    # ---- fronts

    def add_front(self, front: Front) -> int:
        """A number for a front; it is part of its requests' ids from now on."""
        number = next(self._front_numbers)
        self._fronts[number] = front
        return number

    def remove_front(self, number: int) -> None:
        """A front is gone, and nobody waits for its requests."""
        self._fronts.pop(number, None)
        for request_id in self._line.waiting_from(number, FRONT_BITS):
            self._line.leave(request_id)
        for request in self.requests.of_front(number):
            self._cancel(request)

    def from_front(self, number: int, message: msgspec.Struct) -> None:
        match message:
            case Submit():
                self._open.submit(replace(message, request_id=self._new_id(number, message.request_id)))
            case Ask():
                self._ask(replace(message, request_id=self._new_id(number, message.request_id)))
            case AskSealed(ask=ask):
                self._ask(replace(ask, request_id=self._new_id(number, ask.request_id)), message.prompt)
            case Cancel():
                request_id = wide(number, message.request_id)
                if not self._line.leave(request_id) and (request := self.requests.get(request_id)):
                    self._cancel(request)
            case AskStats():
                if (service := self._node.service) is not None:
                    service.ask_stats(lambda stats: self._tell_stats(number, stats))
                else:
                    self._tell_stats(number, Stats(up=False))
            case AskView():
                request_id = wide(number, message.request_id)
                if (service := self._node.service) is not None:
                    self._views[request_id] += 1
                    service.send(AskView(request_id))
                else:
                    self._tell(View(request_id, known=False))
            case EndSession():
                self.sessions.end_named(SessionKey.of(message.tenant, message.group, message.session, keep=True))
            case _:
                raise ProtocolError("A front sent a message out of turn.")

    def _new_id(self, number: int, request_id: int) -> int:
        """The id under which the node knows a front's new request."""
        request_id = wide(number, request_id)
        if request_id in self.requests or request_id in self._line:
            raise ProtocolError("A front sent a message out of turn.")
        return request_id

    def _ask(self, message: Ask, sealed: SealedPrompt | None = None) -> None:
        try:
            asked = Asked(message, message.prompt if sealed is None else self._lock(sealed))
            if message.level == self.mpc.level.name:
                self.mpc.ask(asked)
            else:
                self._line.enter(asked)
        except (QueueFull, ServiceUnavailable) as reason:
            self.requests.refuse(message.request_id, reason)

    def _confide(self, asked: Asked) -> None:
        route = self.routes[asked.ask.level]
        assert isinstance(route, VaultRoute)
        route.confide(asked)

    def _cancel(self, request: Request) -> None:
        self.requests.drop(request)
        self._route_of(request).cancel(request)
        self._leave(request)

    def _ended(self, request: Request) -> None:
        self._partitioned.release(request)
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """One request less in its session, which may be idle or gone now: the next that waits may have its vault."""
        if request.session is not None:
            self.sessions.leave(request.session, request.request_id)
            self._line.move()

    def _tell(self, message: Accepted | Tokens | Failed | View) -> None:
        if front := self._fronts.get(front_of(message.request_id)):
            # A step brings tokens for everybody: the front is woken once for all of them.
            front.send_soon(replace(message, request_id=local(message.request_id)))

    def _tell_stats(self, number: int, stats: Stats) -> None:
        if front := self._fronts.get(number):
            front.send(
                replace(
                    stats,
                    running=stats.running + len(self.requests.held_by("vault")) + len(self.requests.held_by("mpc")),
                    prompt_tokens=stats.prompt_tokens + self.requests.prompt_tokens,
                    output_tokens=stats.output_tokens + self.requests.output_tokens,
                    waiting=stats.waiting + len(self._line),
                    vaults=len(self.sessions),
                    vault_ready_ms=self.vaults.ready_ms,
                    vault_wait_ms=self.vaults.wait_ms,
                )
            )

    # ---- the service

    def service_up(self, service: Service) -> None:
        """There is a service: it may ask the vaults that live, and gets work again."""
        self.referee.service_up(service)
        for vault in self.sessions.vaults():
            service.attach(vault.number, vault.link)
        self._node.service = service

    def service_gone(self) -> None:
        """Requests that need it fail; vaults and their sessions stay."""
        self._node.service = None
        for request in self.requests:
            if request.level.decodes is Decodes.SERVICE:
                if request.holder == "vault":
                    self._route_of(request).cancel(request)
                reason = ServiceUnavailable("The service process ended.", hint="Try again in a few seconds.")
                self.requests.fail(request, reason)
        for request_id in list(self._views.elements()):
            self._viewed(View(request_id, known=False))
        self.referee.service_gone()

    def _viewed(self, view: View) -> None:
        self._views -= Counter((view.request_id,))
        self._tell(view)

    def from_service(self, message: msgspec.Struct) -> None:
        match message:
            case Paused():
                self.referee.paused()
            case View():
                if not self._views[message.request_id]:
                    raise ProtocolError("The service sent a view that nobody asked for.")
                self._viewed(message)
            case Accepted() | Tokens() | Failed():
                if (request := self.requests.get(message.request_id)) is not None:
                    said = in_own_words(message) if isinstance(message, Failed) else message
                    self._route_of(request).from_service(request, said)
            case _:
                raise ProtocolError("The service sent a message out of turn.")

    # ---- vaults

    def _session_begins(self, vault: Vault) -> None:
        if self._node.service is not None:
            self._node.service.attach(vault.number, vault.link)

    def _session_ended(self, session: Session) -> None:
        service = self._node.service
        if service is not None:
            service.detach(session.vault.number)
        self.referee.gone(session.vault.number)
        for request_id in list(session.requests):
            if (request := self.requests.get(request_id)) is not None:
                if request.holder == "service" and service is not None:
                    service.send(Cancel(request_id))
                self.requests.fail(request, VaultLost.because("vault_lost"))
        self._line.move()

    def _vault_ended(self, vault: Vault) -> None:
        if (session := self.sessions.of_vault(vault)) is not None:
            self.sessions.end(session)

    def _from_vault(self, vault: Vault, message: msgspec.Struct) -> None:
        match message:
            case WantFloor():
                self.referee.want(vault.number, vault, message.tokens)
            case FloorDone():
                self.referee.done(vault.number)
            case LinkBroken():
                raise ProtocolError("A vault was asked what it must not answer.")
            case Understood() | Prefilled() | Tokens() | Failed():
                request = self.requests.get(message.request_id)
                if request is None:  # cancelled a moment ago
                    if isinstance(message, Prefilled):
                        vault.send(Release(message.request_id))
                elif request.session is None or request.session.vault is not vault or request.holder != "vault":
                    raise ProtocolError("A vault speaks of a request it does not have.")
                else:
                    self._route_of(request).from_vault(request, message)
            case _:
                raise ProtocolError("A vault sent a message out of turn.")
