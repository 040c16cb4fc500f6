"""Passes requests' messages, by one route a level. A process that sends what its request's route forbids is ended."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from cloister.config import ControllerSettings
from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.external_engine import ExternalEngine
from cloister.controller.external_level import ExternalLevel, ExternalRoute
from cloister.controller.meter import Meter
from cloister.controller.requests import Frontend, Frontends, Request, Requests, frontend_of, sanitised, wide
from cloister.controller.routes.base import Node, Route
from cloister.controller.routes.open import OpenRoute, SharedRoute
from cloister.controller.routes.vault import IsolatedRoute, ObfuscatedRoute, PartitionedRoute, VaultRoute
from cloister.controller.service import Service
from cloister.controller.sessions import SessionKey
from cloister.controller.sharing import Sharing
from cloister.controller.token_gate import TokenGate
from cloister.controller.totals import Totals
from cloister.controller.vault_side import PendingRequest, VaultSide
from cloister.controller.vaults import Vaults
from cloister.controller.verification import Verification
from cloister.controller.views import Views
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, QueueFull, ServiceUnavailable
from cloister.fairness import ANONYMOUS
from cloister.levels import LEVELS, OBFUSCATED, PARTITIONED, Decodes, LevelName, Reader
from cloister.messages import controller_frontend as wire
from cloister.messages.controller_sealed_api import AskSealed
from cloister.messages.controller_service import ForgetTenant, Paused
from cloister.messages.controller_vault import MAX_CLAIMED
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Stats, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.types import ExtraAnswer
from cloister.prefix.base import POLICIES
from cloister.verify_mode import VerifyMode

Asking = TypeVar("Asking", wire.Ask, wire.SubmitTokens)
UNTRIED = ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
FAILED = ServiceUnavailable(
    "The server's own test of this level failed.",
    hint="Its operator finds the reason in the server's output. Try again later, or choose another level.",
)


class Availability:
    """Only the frontend `rehearser` may ask at a closed level, except where vaults do without the service."""

    def __init__(self, node: Node, vaults: Vaults) -> None:
        self._node, self._vaults = node, vaults
        self.closed: dict[str, CloisterError] = {}
        self.rehearser = 0

    @property
    def now(self) -> tuple[LevelName, ...]:
        try:
            offered = self._node.serving().levels
        except ServiceUnavailable:
            return ()
        return tuple(name for name in offered if name not in self.closed and self._has_processes(name))

    def check(self, level: str, frontend: int) -> None:
        reason = self.closed.get(level)
        alone = reason is UNTRIED and level in (PARTITIONED, OBFUSCATED) and self._node.verification.always
        if frontend != self.rehearser and reason is not None and not (alone and self._vaults.can_be_had):
            raise reason

    def close(self, levels: Iterable[str], reason: CloisterError = UNTRIED) -> None:
        self.closed |= dict.fromkeys(levels, reason)

    def open(self, level: str) -> None:
        self.closed.pop(level, None)

    def _has_processes(self, name: str) -> bool:
        level = LEVELS[name]
        needs_service, needs_vaults = level.decodes is Decodes.SERVICE, level.reader is Reader.VAULT
        return (self._node.service is not None or not needs_service) and (self._vaults.can_be_had or not needs_vaults)


class Relay:
    """`lock` adds the key to a sealed prompt when a vault is to have it. `offered` is None before the first service."""

    def __init__(
        self,
        settings: ControllerSettings,
        cores: int,
        lock: Callable[[SealedPrompt, str], LockedPrompt],
        offered: wire.Serving | None = None,
    ) -> None:
        self._lock, self.offered, serving = lock, offered, self.serving
        self._frontends = Frontends()
        self.meter = Meter(settings, serving)
        self.requests = Requests(self._frontends.tell, serving, self._ended, self.meter)
        tenants = self.requests.active_tenants
        self.core_lease = LeaseKeeper(cores, settings.vault_deadline_s, settings.service_deadline_s, tenants)
        verification = Verification(VerifyMode.of(settings.verify), self._release, self._deviated)
        self._node = Node(self.requests, serving, verification)
        self._vault_side = VaultSide(settings, self._node, self.core_lease, self._assign)
        self.vaults, self.sessions = self._vault_side.vaults, self._vault_side.sessions
        self._queue = self._vault_side.queue
        self.views = Views(self.requests, lambda: self.vaults.shape, serving)
        self.availability = Availability(self._node, self.vaults)
        self.totals = Totals(self.requests, self.vaults)
        self._tenants: frozenset[str] = frozenset()
        self.token_gate: TokenGate | None = None
        self.sharing = Sharing(settings, lambda: serving().block_tokens)
        self.shared = SharedRoute(self._node, self.sharing)
        self._partitioned = PartitionedRoute(self._node)
        self.open = OpenRoute(self._node, settings.prefix_policy)
        routes: tuple[Route, ...] = (
            self.open,
            self.shared,
            self._partitioned,
            ObfuscatedRoute(self._node),
            IsolatedRoute(self._node),
        )
        self.routes = self._node.routes
        self.routes |= {route.level.name: route for route in routes}

    @property
    def service(self) -> Service | None:
        return self._node.service

    def serving(self) -> wire.Serving:
        if self.offered is None:
            raise ServiceUnavailable("The service is not up yet.")
        return self.offered

    def add_level(self, level: ExternalLevel) -> None:
        route = level.route(self._node)
        self.routes[route.level.name] = route

    def serve_with(self, engine: ExternalEngine) -> None:
        """Another engine decodes: it serves fewer fields, and no vault computes its bits again."""
        self.open.unserved = self.shared.unserved = engine.unserved
        self._node.verification.equal_bits = False

    def shares(self, level: str) -> bool:
        return POLICIES[self.routes[level].policy].sees_public

    # ---- frontends

    def add_frontend(self, frontend: Frontend) -> int:
        return self._frontends.add(frontend)

    def remove_frontend(self, number: int) -> None:
        self._frontends.remove(number)
        self._queue.leave_all_of(number)
        for request in self.requests:
            if frontend_of(request.request_id) == number:
                self._cancel(request)
        self.meter.leave_all_of(number)
        self.views.forget(lambda request_id, _: frontend_of(request_id) == number)

    def from_frontend(self, number: int, message: msgspec.Struct) -> None:
        match message:
            case wire.SubmitTokens():
                self._ask(self._renumbered(number, message))
            case wire.Ask():
                self._ask(self._renumbered(number, message))
            case AskSealed(ask=ask):
                self._ask(self._renumbered(number, ask), message.prompt)
            case Cancel():
                request_id = wide(number, message.request_id)
                if self._queue.leave(request_id):
                    self.meter.left(request_id)
                elif request := self.requests.get(request_id):
                    self._cancel(request)
            case AskStats():
                if (service := self._node.service) is not None:
                    service.ask_stats(lambda stats: self._send_stats(number, stats))
                else:
                    self._send_stats(number, Stats(up=False))
            case wire.AskView():
                self._frontends.tell(self.views.of(wide(number, message.request_id)))
            case wire.SpendToken():
                self._spend(number, message)
            case wire.EndSession():
                key = SessionKey.of(message.tenant, message.group, message.session, keep=True)
                self.sessions.end_named(key)
                self.views.forget(lambda _, last: last.session == key)
                if message.private:
                    self._forget(message.tenant)
            case _:
                raise ProtocolError("A frontend sent a message out of turn.")

    def admit(self, keys: tuple[wire.KeyEntry, ...]) -> None:
        """Of a tenant that lost its last key nothing is kept."""
        tenants = frozenset(key.tenant for key in keys)
        self.sharing.admit(keys)
        self.meter.admit(keys)
        for tenant in self._tenants - tenants:
            self.sessions.end_all_of(tenant)
            self._forget(tenant)
        self._tenants = tenants

    def _forget(self, tenant: str) -> None:
        """Neither the service nor this process keeps anything of this tenant's requests that ended."""
        self.views.forget(lambda _, last: last.tenant == tenant)
        self.shared.serve_all_of(tenant)
        if self._node.service is not None:
            self._node.service.send(ForgetTenant(tenant))

    def _spend(self, number: int, message: wire.SpendToken) -> None:
        def settled(reason: CloisterError | None) -> None:
            refused = None if reason is None else failed(message.request_id, reason)
            self._frontends.send(number, wire.TokenSettled(message.request_id, refused))

        if self.token_gate is None:
            settled(ServiceUnavailable("The server is not up yet."))
        else:
            self.token_gate.settle(message.token, settled)

    def _new_id(self, number: int, request_id: int) -> int:
        request_id = wide(number, request_id)
        if request_id in self.requests or request_id in self._queue:
            raise ProtocolError("A frontend sent a message out of turn.")
        return request_id

    def _renumbered(self, number: int, ask: Asking) -> Asking:
        also = tuple(ExtraAnswer(self._new_id(number, each.request_id), each.seed) for each in ask.also)
        if len({ask.request_id, *(each.request_id for each in ask.also)}) <= len(also):
            raise ProtocolError("A frontend sent a message out of turn.")
        return replace(ask, request_id=self._new_id(number, ask.request_id), also=also)

    def _ask(self, message: wire.Ask | wire.SubmitTokens, sealed: SealedPrompt | None = None) -> None:
        try:
            self.availability.check(message.level, frontend_of(message.request_id))
            match self.routes.get(message.level), message:
                case OpenRoute() as route, wire.SubmitTokens():
                    self.meter.begin(message, len(message.prompt))
                    route.submit(message)
                case VaultRoute(), wire.Ask():
                    self._queue.enter(self._begun(message, sealed))
                case ExternalRoute() as route, wire.Ask():
                    route.ask(self._begun(message, sealed))
                case _:
                    raise LevelUnavailable(f"This server does not offer the level {message.level}.", param="protection")
        except (LevelUnavailable, QueueFull, ServiceUnavailable) as reason:
            for request_id in (message.request_id, *(each.request_id for each in message.also)):
                self.requests.refuse(request_id, reason)

    def _begun(self, ask: wire.Ask, sealed: SealedPrompt | None) -> PendingRequest:
        asked = PendingRequest(ask, ask.prompt if sealed is None else self._lock(sealed, ask.group or ask.tenant))
        self.meter.begin(ask, asked.bytes)
        return asked

    def _assign(self, asked: PendingRequest) -> None:
        route = self.routes[asked.ask.level]
        assert isinstance(route, VaultRoute)
        route.assign(asked)

    def _cancel(self, request: Request) -> None:
        self.requests.drop(request)
        self._node.route_of(request).cancel(request)
        self._leave(request)

    def _ended(self, request: Request) -> None:
        self._partitioned.release(request)
        self._leave(request)

    def _release(self, request: Request, tokens: Tokens) -> None:
        route = self._node.route_of(request)
        assert isinstance(route, VaultRoute)
        route.advance(request, tokens)

    def _deviated(self, request: Request, reason: CloisterError | None, restarts: bool) -> None:
        """The vault or the service lies: neither goes on, unless services were ended too often for that, or nothing
        left yet that the vault alone does not say."""
        if reason is not None:
            self.requests.fail(request, reason)
            if request.session is not None:
                self._node.unlink(request.session)
        if self._node.service is not None:
            self._node.service.abort() if restarts else self._node.service.cancel(request.request_id, lambda: None)

    def _leave(self, request: Request) -> None:
        self._node.verification.forget(request.request_id)
        self.views.keep(request)
        if request.tenant.startswith(ANONYMOUS):  # no other request is of this tenant
            self._forget(request.tenant)
        if request.session is not None:
            self._vault_side.leave(request.session, request.request_id)

    def _send_stats(self, number: int, stats: Stats) -> None:
        total = self.totals.of(stats, len(self._queue), len(self.sessions), self.availability.now)
        self._frontends.send(number, total)

    # ---- the service

    def compute_beside(self) -> None:
        """Vaults compute beside the service, on a device, where a pass is mostly the reading of all weights."""
        self.core_lease.compute_beside()
        self._node.verification.longest = MAX_CLAIMED

    def service_up(self, service: Service) -> None:
        self.core_lease.service_up(service)
        self._node.service = service
        self._vault_side.service_up()
        self._node.verification.service_up(service)

    def service_gone(self) -> None:
        """Requests that need it fail, unless they are verified; vaults and their sessions stay."""
        self._node.service = None
        self._node.verification.service_gone()
        for request in self.requests:
            if self._node.verification.survives(request):
                continue
            if request.level.decodes is Decodes.SERVICE:
                if request.holder == "vault":
                    self._node.route_of(request).cancel(request)
                reason = ServiceUnavailable("The service process ended.", hint="Try again in a few seconds.")
                self.requests.fail(request, reason)
        self.core_lease.service_gone()

    def from_service(self, message: msgspec.Struct) -> None:
        match message:
            case Paused(charged=charged):
                self.core_lease.paused(charged)
            case Accepted() | Tokens() | Failed():
                if (request := self.requests.get(message.request_id)) is not None:
                    checked = sanitised(message) if isinstance(message, Failed) else message
                    self._node.route_of(request).from_service(request, checked)
            case _:
                raise ProtocolError("The service sent a message out of turn.")
