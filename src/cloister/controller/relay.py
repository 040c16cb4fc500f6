"""Passes on what the processes say of requests: frontends, vaults and the service, with one route a level between them.

Prompts pass as opaque bytes, answers as token ids; what users may see of their own requests is kept by `views.py`. A
request's route checks what a process may say of it: a vault or service that lies is ended (its endpoint raises).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from cloister.config import ControllerSettings
from cloister.controller.availability import Availability
from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.detector import BlockLabel
from cloister.controller.external_level import ExternalLevel, ExternalRoute
from cloister.controller.judge import JudgeKeeper, case_of
from cloister.controller.probes import Probes
from cloister.controller.requests import Request, Requests, frontend_of, local, sanitised, wide
from cloister.controller.routes.base import Node, Route
from cloister.controller.routes.isolated import IsolatedRoute
from cloister.controller.routes.obfuscated import ObfuscatedRoute
from cloister.controller.routes.open import OpenRoute
from cloister.controller.routes.partitioned import PartitionedRoute
from cloister.controller.routes.shared import SharedRoute
from cloister.controller.routes.vault import VaultRoute
from cloister.controller.service import Service
from cloister.controller.sessions import Session, SessionKey, Sessions
from cloister.controller.totals import Totals
from cloister.controller.vault_queue import PendingRequest, VaultQueue
from cloister.controller.vaults import Vault, Vaults
from cloister.controller.views import Views
from cloister.errors import LevelUnavailable, ProtocolError, QueueFull, ServiceUnavailable, VaultLost
from cloister.levels import Decodes
from cloister.messages.detector import Label as Verdict
from cloister.messages.frontend import Ask, AskSealed, EndSession, Examine, JudgeForm, KeyEntry, Serving
from cloister.messages.generation import Accepted, Also, AskStats, Cancel, Failed, Stats, Submit, Tokens
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.service import AskView, Forget, Label, Paused, Probed, View
from cloister.messages.vault import CoresDone, LinkBroken, Prefilled, PromptAccepted, Release, WantCores
from cloister.prefix.policy import POLICIES
from cloister.process.watchdog import SILENT


class Frontend(Protocol):
    """A gateway or the sealed API, as far as the relay is concerned."""

    def send(self, message: msgspec.Struct) -> None: ...
    def send_soon(self, message: msgspec.Struct) -> None: ...


class Examiner(Protocol):
    """Has a detector read a prompt; the ends are those of its blocks."""

    def __call__(self, request_id: int, text: str, ends: Sequence[int], *, suspicion: float) -> None: ...


NO_VAULT = VaultLost(
    "No vault can be had: this server's vault host cannot be used now.",
    hint="Its operator finds the reason in the server's output. Try again later.",
)


class Relay:
    """All requests of all frontends. `lock` adds the key to a sealed prompt when a vault is to have it."""

    def __init__(
        self,
        settings: ControllerSettings,
        serving: Callable[[], Serving],
        cores: int,
        lock: Callable[[SealedPrompt, str], LockedPrompt],
    ) -> None:
        self._lock = lock
        self.examine: Examiner | None = None
        """Has a detector read a prompt, where there is one; what it found comes to `labelled`."""
        self._judge = JudgeKeeper(self._to_service, self._judged) if settings.judge else None
        self._frontends: dict[int, Frontend] = {}
        self._frontend_numbers = itertools.count(1)
        self._queue = VaultQueue(
            settings.max_waiting_for_vaults, self._confide, lambda owner: self.sessions.held_by(owner)
        )
        self.requests = Requests(self._tell, serving, self._ended)
        company = self.requests.company
        self.core_lease = LeaseKeeper(cores, settings.vault_deadline_s, settings.service_deadline_s, company)
        self.vaults = Vaults(
            settings.spare_vaults,
            settings.vault_ready_s,
            self._from_vault,
            self._vault_ended,
            self._queue.move,
            SILENT["vault"].beyond(settings.vault_deadline_s),
        )
        self.sessions = Sessions(
            self.vaults,
            settings.max_vaults,
            settings.session_idle_s,
            self._session_begins,
            self._session_ended,
            lambda: company.several,
        )
        self.views = Views(self.requests, lambda: self.vaults.shape, serving)
        self._node = Node(self.requests, self.sessions, serving)
        self.availability = Availability(self._node, self.vaults, serving)
        self.totals = Totals(self.requests, self.vaults)
        self._shared = SharedRoute(self._node, lambda: self.examine is not None)
        self._read: dict[str, OpenRoute] = {
            route.level.name: route for route in (OpenRoute(self._node, settings.prefix_policy), self._shared)
        }
        self._tenants: frozenset[str] = frozenset()
        self.probes = Probes()
        self._partitioned = PartitionedRoute(self._node)
        by_vaults = self._partitioned, ObfuscatedRoute(self._node), IsolatedRoute(self._node)
        routes: tuple[Route, ...] = (*self._read.values(), *by_vaults)
        self.routes: dict[str, Route] = {route.level.name: route for route in routes}

    @property
    def service(self) -> Service | None:
        return self._node.service

    def add_level(self, level: ExternalLevel) -> None:
        """Requests at this level go by its own route."""
        route = level.route(self._node)
        self.routes[route.level.name] = route

    def shares(self, level: str) -> bool:
        """Whether requests of this level may find what was computed for other tenants."""
        return POLICIES[self.routes[level].policy].sees_public

    def _route_of(self, request: Request) -> Route:
        return self.routes[request.level.name]

    # ---- frontends

    def add_frontend(self, frontend: Frontend) -> int:
        """A number for this frontend; it becomes part of its requests' ids."""
        number = next(self._frontend_numbers)
        self._frontends[number] = frontend
        return number

    def remove_frontend(self, number: int) -> None:
        self._frontends.pop(number, None)
        self._queue.leave_all_of(number)
        for request in self.requests.of_frontend(number):
            self._cancel(request)
        self.views.forget_frontend(number)

    def from_frontend(self, number: int, message: msgspec.Struct) -> None:
        match message:
            case Submit():
                self._submit(replace(message, request_id=self._new_id(number, message.request_id)))
            case Ask():
                self._ask(self._renumbered(number, message))
            case AskSealed(ask=ask):
                self._ask(self._renumbered(number, ask), message.prompt)
            case Cancel():
                request_id = wide(number, message.request_id)
                if not self._queue.leave(request_id) and (request := self.requests.get(request_id)):
                    self._cancel(request)
            case Examine():
                request = self.requests.get(wide(number, message.request_id))
                if request is not None and request.level.examined and self.examine is not None:
                    request.also = tuple(wide(number, one) for one in message.also)
                    suspicion = self.probes.suspicion(request.tenant)
                    self.examine(request.request_id, message.text, message.ends, suspicion=suspicion)
            case JudgeForm():
                if self._judge is not None:
                    self._judge.learn(message)
            case AskStats():
                if (service := self._node.service) is not None:
                    service.ask_stats(lambda stats: self._tell_stats(number, stats))
                else:
                    self._tell_stats(number, Stats(up=False))
            case AskView():
                self._tell(self.views.of(wide(number, message.request_id)))
            case EndSession():
                key = SessionKey.of(message.tenant, message.group, message.session, keep=True)
                self.sessions.end_named(key)
                self.views.forget_session(key)
                if message.private:
                    self._forget(message.tenant)
            case _:
                raise ProtocolError("A frontend sent a message out of turn.")

    def admit(self, keys: tuple[KeyEntry, ...]) -> None:
        """These keys count from now on: of tenants that had one and have none any more, nothing is kept."""
        tenants = frozenset(key.tenant for key in keys)
        self.probes.keep_only(tenants)
        for tenant in self._tenants - tenants:
            self.sessions.end_all_of(tenant)
            self._forget(tenant)
        self._tenants = tenants

    def _forget(self, tenant: str) -> None:
        """Neither the service nor this process keeps anything of this tenant's requests that ended."""
        self.views.forget_tenant(tenant)
        self._shared.serve_all_of(tenant)
        if self._judge is not None:
            self._judge.forget(tenant)
        self._to_service(Forget(tenant))

    def _to_service(self, message: msgspec.Struct) -> None:
        if self._node.service is not None:
            self._node.service.send(message)

    def _new_id(self, number: int, request_id: int) -> int:
        request_id = wide(number, request_id)
        if request_id in self.requests or request_id in self._queue:
            raise ProtocolError("A frontend sent a message out of turn.")
        return request_id

    def _renumbered(self, number: int, ask: Ask) -> Ask:
        also = tuple(Also(self._new_id(number, each.request_id), each.seed) for each in ask.also)
        if len({ask.request_id, *(each.request_id for each in ask.also)}) <= len(also):
            raise ProtocolError("A frontend sent a message out of turn.")
        return replace(ask, request_id=self._new_id(number, ask.request_id), also=also)

    def _submit(self, message: Submit) -> None:
        try:
            self.availability.check(message.level, frontend_of(message.request_id))
        except ServiceUnavailable as reason:
            self.requests.refuse(message.request_id, reason)
        else:
            self._read[message.level].submit(message)

    def _ask(self, message: Ask, sealed: SealedPrompt | None = None) -> None:
        try:
            self.availability.check(message.level, frontend_of(message.request_id))
            asked = PendingRequest(
                message, message.prompt if sealed is None else self._lock(sealed, message.group or message.tenant)
            )
            match self.routes.get(message.level):
                case VaultRoute():
                    self._queue.enter(asked)
                case ExternalRoute() as route:
                    route.ask(asked)
                case _:
                    raise LevelUnavailable(f"This server does not offer the level {message.level}.", param="protection")
        except (LevelUnavailable, QueueFull, ServiceUnavailable) as reason:
            for request_id in (message.request_id, *(each.request_id for each in message.also)):
                self.requests.refuse(request_id, reason)

    def _confide(self, asked: PendingRequest) -> None:
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
        """It has ended: its last view stays for a moment. Its session may be idle or gone now, so the next request that
        waits may have a vault."""
        self.views.keep(request)
        if request.session is not None:
            self.sessions.leave(request.session, request.request_id)
            self._queue.move()

    def _tell(self, message: Accepted | Tokens | Failed | View) -> None:
        if frontend := self._frontends.get(frontend_of(message.request_id)):
            # A step brings tokens for everybody: the frontend is woken once for all of them.
            frontend.send_soon(replace(message, request_id=local(message.request_id)))

    def _tell_stats(self, number: int, stats: Stats) -> None:
        if frontend := self._frontends.get(number):
            frontend.send(self.totals.of(stats, len(self._queue), len(self.sessions), self.availability.now))

    # ---- the service

    def service_up(self, service: Service) -> None:
        """There is a service: it may ask the vaults that live, and gets work again."""
        self.core_lease.service_up(service)
        self._node.service = service
        for vault in self.sessions.vaults():
            vault.when_sealed(partial(self._attach, vault))

    def service_gone(self) -> None:
        """Requests that need it fail; vaults and their sessions stay."""
        self._node.service = None
        if self._judge is not None:
            self._judge.give_up()
        for request in self.requests:
            if request.level.decodes is Decodes.SERVICE:
                if request.holder == "vault":
                    self._route_of(request).cancel(request)
                reason = ServiceUnavailable("The service process ended.", hint="Try again in a few seconds.")
                self.requests.fail(request, reason)
        self.core_lease.service_gone()

    def from_service(self, message: msgspec.Struct) -> None:
        match message:
            case Paused(charged=charged):
                self.core_lease.paused(charged)
            case Probed():
                self.probes.handle(message)
            case Accepted() | Tokens() | Failed():
                if self._judge is not None and self._judge.concerns(message.request_id):
                    self._judge.handle(message)
                elif (request := self.requests.get(message.request_id)) is not None:
                    said = sanitised(message) if isinstance(message, Failed) else message
                    self._route_of(request).from_service(request, said)
            case _:
                raise ProtocolError("The service sent a message out of turn.")

    def labelled(self, request_id: int, blocks: Sequence[BlockLabel]) -> None:
        """A detector has read this prompt: what comes before the first block that it did not pass may be shared. Of
        what it was not sure the model is asked, while the request lasts."""
        size = self._node.serving().block_tokens
        public = size * next((at for at, one in enumerate(blocks) if one.label is not Verdict.PUBLIC), len(blocks))
        final = True
        if (request := self.requests.get(request_id)) is not None:
            request.labels = tuple(blocks)
            for other in map(self.requests.get, request.also):
                if other is not None and other.tenant == request.tenant and other.shown == request.shown:
                    other.labels = request.labels
                    self._shared.labelled(Label(other.request_id, public))
            if self._judge is not None and self._node.service is not None:
                case = case_of(request_id, request.tenant, request.shown, blocks, size)
                final = case is None or not self._judge.ask(case)
        self._shared.labelled(Label(request_id, public, final))

    def _judged(self, request_id: int, public_tokens: int) -> None:
        self._to_service(Label(request_id, public_tokens))

    # ---- vaults

    def _session_begins(self, vault: Vault) -> None:
        """Not before it is sealed: the place of its link is its own then, and nothing is asked before."""
        if self._node.service is not None:
            vault.when_sealed(partial(self._attach, vault))

    def _attach(self, vault: Vault) -> None:
        if self._node.service is not None:
            self._node.service.attach(vault.number, vault.link, vault.place)

    def _session_ended(self, session: Session) -> None:
        service = self._node.service
        if service is not None:
            service.detach(session.vault.number)
        self.core_lease.gone(session.vault.number)
        for request_id in list(session.requests):
            if (request := self.requests.get(request_id)) is not None:
                if request.holder == "service" and service is not None:
                    service.send(Cancel(request_id))
                lost = VaultLost.because("vault_lost") if session.vault.trouble is None else NO_VAULT
                self.requests.fail(request, lost)
        self._queue.move()

    def _vault_ended(self, vault: Vault) -> None:
        if (session := self.sessions.of_vault(vault)) is not None:
            self.sessions.end(session)

    def _from_vault(self, vault: Vault, message: msgspec.Struct) -> None:
        match message:
            case WantCores():
                session = self.sessions.of_vault(vault)
                owner = session.key.owner if session else ""
                self.core_lease.want(vault.number, vault, message.tokens, owner, reading=message.reading)
            case CoresDone():
                self.core_lease.done(vault.number)
            case LinkBroken():
                raise ProtocolError("A vault was asked what it must not answer.")
            case PromptAccepted() | Prefilled() | Tokens() | Failed():
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
