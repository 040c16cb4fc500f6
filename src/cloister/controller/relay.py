"""Carries each request through the house: front → vault → service → front, and back out of it at any stage.

Prompts pass as opaque bytes, answers as token ids; neither is kept here. What one process may say of a request is
checked against the stage that request is in: a vault or service that lies is ended (its channel raises).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from cloister.config import ControllerSettings
from cloister.controller.clerk_desk import ClerkDesk
from cloister.controller.line import Line
from cloister.controller.numbering import FRONT_BITS, front_of, local, wide
from cloister.controller.referee import Referee
from cloister.controller.service import Service
from cloister.controller.sessions import Session, SessionKey, Sessions
from cloister.controller.vaults import Vault, Vaults
from cloister.controller.wording import in_own_words
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, QueueFull, ServiceUnavailable, VaultLost
from cloister.messages.failure import failed
from cloister.messages.front import Ask, EndSession, Serving
from cloister.messages.generation import (
    Accepted,
    AskStats,
    Cancel,
    Failed,
    Partition,
    SamplingParams,
    Stats,
    Submit,
    Tokens,
)
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.sealed_api import AskSealed
from cloister.messages.service import AskView, Paused, View
from cloister.messages.vault import Confide, First, FloorDone, LinkBroken, Release, Understood, VaultLevel, WantFloor

_AWAY = "The service is restarting."
_AGAIN = "Try again in a few seconds."


class Front(Protocol):
    """A gateway or the sealed API, as far as the relay is concerned."""

    def send(self, message: msgspec.Struct) -> None: ...
    def send_soon(self, message: msgspec.Struct) -> None: ...


def _nothing_is_sealed(prompt: SealedPrompt) -> LockedPrompt:
    raise ProtocolError("There is no sealed prompt.")


@dataclass(frozen=True, repr=False)
class Asked:
    """What a front asks for, and the prompt as its vault will get it."""

    ask: Ask
    prompt: bytes | LockedPrompt

    @property
    def request_id(self) -> int:
        return self.ask.request_id


@dataclass
class Request:
    """One request under way. `stage` is who is generating; `exposed`: the vault answers the link for it."""

    request_id: int
    tenant: str
    level: Literal["open"] | VaultLevel
    params: SamplingParams
    stage: Literal["vault", "service"]
    session: Session | None = None
    accepted: bool = False
    exposed: bool = False


class Relay:
    """All requests of all fronts. `lock` gives a sealed prompt with its key, when a vault is to have it."""

    def __init__(
        self,
        settings: ControllerSettings,
        serving: Callable[[], Serving],
        cores: int,
        lock: Callable[[SealedPrompt], LockedPrompt] = _nothing_is_sealed,
    ) -> None:
        self._serving = serving
        self._lock = lock
        self._service: Service | None = None
        self._fronts: dict[int, Front] = {}
        self._front_numbers = itertools.count(1)
        self._line = Line(settings.max_waiting_for_vaults, self._confide)
        self._requests: dict[int, Request] = {}
        self._views: Counter[int] = Counter()
        self._prompt_tokens = 0
        self._output_tokens = 0
        self.mpc = ClerkDesk(self._tell, lambda: serving().vocabulary)
        self.referee = Referee(cores, settings.vault_deadline_s, settings.service_deadline_s)
        self.vaults = Vaults(settings.spare_vaults, settings.vault_ready_s, self._from_vault, self._vault_ended)
        self.sessions = Sessions(
            self.vaults, settings.max_vaults, settings.session_idle_s, self._session_begins, self._session_ended
        )

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
        for request in [one for one in self._requests.values() if front_of(one.request_id) == number]:
            self._cancel(request)
        self.mpc.front_gone(number)

    def from_front(self, number: int, message: msgspec.Struct) -> None:
        match message:
            case Submit():
                self._submit(replace(message, request_id=wide(number, message.request_id)))
            case Ask():
                self._ask(replace(message, request_id=wide(number, message.request_id)))
            case AskSealed():
                self._ask(replace(message.ask, request_id=wide(number, message.ask.request_id)), message.prompt)
            case Cancel():
                request_id = wide(number, message.request_id)
                if self._line.leave(request_id) or self.mpc.cancel(request_id):
                    return
                if request := self._requests.get(request_id):
                    self._cancel(request)
            case AskStats():
                if self._service is not None:
                    self._service.ask_stats(lambda stats: self._tell_stats(number, stats))
                else:
                    self._tell_stats(number, Stats(up=False))
            case AskView():
                if self._service is not None:
                    self._views[wide(number, message.request_id)] += 1
                    self._service.send(AskView(wide(number, message.request_id)))
                else:
                    self._tell(View(wide(number, message.request_id), known=False))
            case EndSession():
                self.sessions.end_named(SessionKey.of(message.tenant, message.group, message.session, keep=True))
            case _:
                raise ProtocolError("A front sent a message out of turn.")

    def _submit(self, message: Submit) -> None:
        if message.partition is not None or self._has(message.request_id):
            raise ProtocolError("A front sent a message out of turn.")
        if self._service is None:
            self._refuse(message.request_id, ServiceUnavailable(_AWAY, hint=_AGAIN))
            return
        request = Request(message.request_id, message.tenant, "open", message.params, "service")
        self._requests[message.request_id] = request
        self._service.send(message)

    def _ask(self, message: Ask, sealed: SealedPrompt | None = None) -> None:
        if self._has(message.request_id):
            raise ProtocolError("A front sent a message out of turn.")
        try:
            prompt = message.prompt if sealed is None else self._lock(sealed)
            if message.level == "mpc":
                self.mpc.ask(Confide(message.request_id, message.level, prompt, message.params))
            else:
                self._line.enter(Asked(message, prompt))
        except (QueueFull, ServiceUnavailable) as reason:
            self._refuse(message.request_id, reason)

    def _confide(self, asked: Asked) -> None:
        """Give a prompt to its session's vault; QueueFull if there is none for it now."""
        message = asked.ask
        key = SessionKey.of(message.tenant, message.group, message.session, keep=message.keep)
        try:
            if message.level not in self._serving().levels:
                raise LevelUnavailable(f"This server does not offer the level {message.level}.", param="protection")
            if message.level == "partitioned" and self._service is None:
                raise ServiceUnavailable(_AWAY, hint=_AGAIN)
            session = self.sessions.join(key, message.request_id, keep=message.keep)
        except QueueFull:
            raise
        except CloisterError as reason:
            self._refuse(message.request_id, reason)
            return
        request = Request(message.request_id, message.tenant, message.level, message.params, "vault", session)
        self._requests[message.request_id] = request
        session.vault.send(Confide(message.request_id, message.level, asked.prompt, message.params))

    def _has(self, request_id: int) -> bool:
        return request_id in self._requests or request_id in self._line or request_id in self.mpc

    def _cancel(self, request: Request) -> None:
        del self._requests[request.request_id]
        session = request.session
        if request.stage == "service" and self._service is not None:
            self._service.cancel(request.request_id, lambda: self._release(request))
        elif session is not None:
            session.vault.send(Cancel(request.request_id))
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """One request less in its session, which may be idle or gone now: somebody else's turn."""
        if request.session is not None:
            self.sessions.leave(request.session, request.request_id)
            self._line.move()

    def _tell(self, message: Accepted | Tokens | Failed | View) -> None:
        if front := self._fronts.get(front_of(message.request_id)):
            # A step brings tokens for everybody: the front is woken once for all of them.
            front.send_soon(replace(message, request_id=local(message.request_id)))

    def _tell_stats(self, number: int, stats: Stats) -> None:
        if front := self._fronts.get(number):
            in_vaults = sum(request.stage == "vault" for request in self._requests.values())
            front.send(
                replace(
                    stats,
                    running=stats.running + in_vaults + len(self.mpc),
                    prompt_tokens=stats.prompt_tokens + self._prompt_tokens + self.mpc.prompt_tokens,
                    output_tokens=stats.output_tokens + self._output_tokens + self.mpc.output_tokens,
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
        self._service = service

    def service_gone(self) -> None:
        """Requests that need it fail; vaults and their sessions stay."""
        self._service = None
        for request in [one for one in self._requests.values() if one.level != "isolated"]:
            if request.stage == "vault" and request.session is not None:
                request.session.vault.send(Cancel(request.request_id))
            self._fail(request, ServiceUnavailable("The service process ended.", hint=_AGAIN))
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
                request = self._requests.get(message.request_id)
                if request is not None:
                    if request.stage != "service":
                        raise ProtocolError("The service speaks of a request it does not have.")
                    self._advance(request, in_own_words(message) if isinstance(message, Failed) else message)
            case _:
                raise ProtocolError("The service sent a message out of turn.")

    # ---- vaults

    def _session_begins(self, vault: Vault) -> None:
        if self._service is not None:
            self._service.attach(vault.number, vault.link)

    def _session_ended(self, session: Session) -> None:
        if self._service is not None:
            self._service.detach(session.vault.number)
        self.referee.gone(session.vault.number)
        for request_id in list(session.requests):
            if (request := self._requests.get(request_id)) is not None:
                if request.stage == "service" and self._service is not None:
                    self._service.send(Cancel(request_id))
                self._fail(request, VaultLost.because("vault_lost"))
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
            case Understood() | First() | Tokens() | Failed():
                request = self._requests.get(message.request_id)
                if request is None:  # cancelled a moment ago
                    if isinstance(message, First):
                        vault.send(Release(message.request_id))
                elif request.session is None or request.session.vault is not vault or request.stage != "vault":
                    raise ProtocolError("A vault speaks of a request it does not have.")
                elif isinstance(message, Understood):
                    self._understood(request, message)
                elif isinstance(message, First):
                    self._first(request, message)
                else:
                    if isinstance(message, Tokens):
                        if request.level != "isolated":
                            raise ProtocolError("A vault generates what the service should.")
                        self._output_tokens += len(message.tokens)
                    self._advance(request, message)
            case _:
                raise ProtocolError("A vault sent a message out of turn.")

    def _understood(self, request: Request, message: Understood) -> None:
        if request.accepted:
            raise ProtocolError("A vault understood a prompt twice.")
        self._prompt_tokens += message.prompt_tokens
        self._advance(request, Accepted(message.request_id, message.prompt_tokens))

    def _first(self, request: Request, message: First) -> None:
        if request.level != "partitioned" or not request.accepted or request.session is None:
            raise ProtocolError("A vault sent a first token out of turn.")
        request.exposed = True
        self._prompt_tokens -= len(message.public)  # the service counts those
        self._output_tokens += 1
        logprobs = None if message.logprob is None else (message.logprob,)
        self._advance(request, Tokens(message.request_id, (message.token,), logprobs, finish=message.finish))
        if message.finish is not None:
            return
        if self._service is None:
            self._fail(request, ServiceUnavailable(_AWAY, hint=_AGAIN))
            return
        request.stage = "service"
        number = request.session.vault.number
        self._service.send(
            Submit(
                request.request_id,
                request.tenant,
                message.public,
                replace(request.params, max_tokens=message.max_tokens),
                public=len(message.public),
                partition=Partition(number, message.slot, message.token, message.origin, message.turn),
            )
        )

    # ---- a request's way

    def _advance(self, request: Request, message: Accepted | Tokens | Failed) -> None:
        match message:
            case Accepted() if request.accepted:
                return  # at `partitioned` the vault said so before the service did
            case Accepted():
                request.accepted = True
                self._tell(message)
            case Tokens():
                vocabulary = self._serving().vocabulary
                if any(token >= vocabulary for token in message.tokens) or message.progress is not None:
                    raise ProtocolError("A token is not of this model, or more is said than tokens.")
                self._tell(message)
                if message.finish is not None:
                    self._end(request)
            case Failed():
                self._tell(message)
                self._end(request)
                if message.code == VaultLost.code and request.session is not None:
                    self.sessions.end(request.session)  # it did not answer the service in time, or answered nonsense

    def _end(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._release(request)
        self._leave(request)

    def _release(self, request: Request) -> None:
        if request.exposed and request.session is not None:
            request.session.vault.send(Release(request.request_id))

    def _fail(self, request: Request, reason: CloisterError) -> None:
        self._refuse(request.request_id, reason)
        self._end(request)

    def _refuse(self, request_id: int, reason: CloisterError) -> None:
        self._tell(failed(request_id, reason))
