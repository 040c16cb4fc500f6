"""The relay's side towards vaults. Prompts are bytes here. A vault that sends a message out of turn is ended."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from cloister.config import ControllerSettings
from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.requests import Request, frontend_of, params_of
from cloister.controller.routes.base import Node
from cloister.controller.sessions import Session, Sessions
from cloister.controller.vaults import Vault, Vaults
from cloister.errors import ProtocolError, QueueFull, VaultLost
from cloister.fairness import payer_of
from cloister.messages import controller_vault as wire
from cloister.messages.controller_frontend import Ask
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.prompts import LockedPrompt
from cloister.messages.types import ExtraAnswer, SamplingParams
from cloister.process.watchdog import SILENT

log = logging.getLogger(__name__)

MAX_BYTES_PER_TENANT = 32 * 1024 * 1024  # of prompts that wait for a vault


@dataclass(eq=False, repr=False)
class PendingRequest:
    """`params`: of each answer by its request id, seedless if the vault draws; a cancelled one is taken out."""

    ask: Ask
    prompt: bytes | LockedPrompt
    params: dict[int, SamplingParams] = field(init=False)

    def __post_init__(self) -> None:
        self.params = params_of(self.ask)

    @property
    def payer(self) -> str:
        return payer_of(self.ask.group or self.ask.tenant)

    @property
    def bytes(self) -> int:
        return len(self.prompt.data if isinstance(self.prompt, LockedPrompt) else self.prompt)

    @property
    def assignment(self) -> wire.AssignPrompt:
        (first, params), *others = self.params.items()
        also = tuple(ExtraAnswer(one, each.seed) for one, each in others)
        return wire.AssignPrompt(first, self.ask.level, self.prompt, params, also, self.ask.obfuscation)


class VaultQueue:
    """First come, first served within a tenant. `serve` raises QueueFull while there is no vault for this tenant."""

    def __init__(self, most: int, serve: Callable[[PendingRequest], None], held: Callable[[str], int]) -> None:
        self._most = most
        self._most_of_one = max(1, most // 2) if most else 0
        self._serve, self._held = serve, held
        self._waiting: dict[int, PendingRequest] = {}
        self._lines: dict[str, list[PendingRequest]] = {}
        self._moving = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def enter(self, asked: PendingRequest) -> None:
        line = self._lines.setdefault(asked.payer, [])
        line.append(asked)
        self._waiting.update(dict.fromkeys(asked.params, asked))
        self.move()
        if asked not in line:
            return
        full = None
        if (
            len(self._waiting) - len(asked.params) >= self._most
        ):  # there is room for all answers to a prompt, or for none
            full = "All vaults are in use and too many requests wait for one."
        count, size = sum(len(one.params) for one in line), sum(one.bytes for one in line)
        if len(line) > 1 and (count > self._most_of_one or size > MAX_BYTES_PER_TENANT):
            full = "Too many of your requests wait for a vault already."
        if full:
            self._forget(asked)
            raise QueueFull(full, retry_after=2)

    def leave(self, request_id: int) -> bool:
        if (asked := self._waiting.pop(request_id, None)) is None:
            return False
        del asked.params[request_id]
        if not asked.params:
            self._forget(asked)
        return True

    def leave_all_of(self, frontend: int) -> None:
        for request_id in [one for one in self._waiting if frontend_of(one) == frontend]:
            self.leave(request_id)

    def move(self) -> None:
        if self._moving:  # serving one may end a session, which calls again
            return
        self._moving = True
        try:
            while self._serve_one():
                pass
        finally:
            self._moving = False

    def _serve_one(self) -> bool:
        for payer in sorted(self._lines, key=self._held):
            asked = self._lines[payer][0]
            try:
                self._serve(asked)
            except QueueFull:
                continue  # this tenant has its share; another may have less
            self._forget(asked)
            return True
        return False

    def _forget(self, asked: PendingRequest) -> None:
        for request_id in asked.params:
            self._waiting.pop(request_id, None)
        line = self._lines.get(asked.payer, [])
        if asked in line:
            line.remove(asked)
        if not line:
            self._lines.pop(asked.payer, None)


def _may_say(request: Request, message: msgspec.Struct) -> bool:
    """A vault that verifies what the service claims may also say that it cannot."""
    if isinstance(message, wire.Verified | wire.FinishAlone):
        return request.holder == "service"
    return request.holder == "vault" or (isinstance(message, Failed) and request.verified)


NO_VAULT = VaultLost(
    "This server's vault host cannot be used now.",
    hint="Its operator finds the reason in the server's output. Try again later.",
)


class VaultSide:
    def __init__(
        self,
        settings: ControllerSettings,
        node: Node,
        core_lease: LeaseKeeper,
        serve: Callable[[PendingRequest], None],
    ) -> None:
        self._node, self._core_lease = node, core_lease
        self.queue = VaultQueue(settings.max_waiting_for_vaults, serve, lambda payer: self.sessions.held_by(payer))
        self.vaults = Vaults(
            settings.spare_vaults,
            settings.vault_ready_s,
            self._handle,
            self._vault_ended,
            self.queue.move,
            SILENT["vault"].beyond(settings.vault_deadline_s),
        )
        self.sessions = node.sessions = Sessions(
            self.vaults,
            settings.max_vaults,
            settings.session_idle_s,
            self._session_opens,
            self._session_ended,
            lambda: node.requests.active_tenants.several_payers,
        )

    def service_up(self) -> None:
        for vault in self.sessions.vaults():
            self._session_begins(vault)

    def leave(self, session: Session, request_id: int) -> None:
        self.sessions.leave(session, request_id)
        self.queue.move()

    def _session_opens(self, vault: Vault) -> None:
        session = self.sessions.of_vault(vault)
        vault.alone = session is not None and self._node.verification.deviations.too_many_of(session.key.owner)
        self._session_begins(vault)

    def _session_begins(self, vault: Vault) -> None:
        if self._node.service is not None:  # not before the vault is sealed: then no other process maps its link
            vault.when_sealed(partial(self._attach, vault))

    def _attach(self, vault: Vault) -> None:
        if self._node.service is not None and not vault.alone:
            self._node.service.attach(vault.number, vault.link, vault.slot)

    def _session_ended(self, session: Session) -> None:
        service = self._node.service
        if service is not None:
            service.detach(session.vault.number)
        self._core_lease.gone(session.vault.number)
        for request_id in list(session.requests):
            if (request := self._node.requests.get(request_id)) is not None:
                if request.holder == "service" and service is not None:
                    service.send(Cancel(request_id))
                lost = VaultLost.because("vault_lost") if session.vault.trouble is None else NO_VAULT
                self._node.requests.fail(request, lost)
        self.queue.move()

    def _vault_ended(self, vault: Vault) -> None:
        """A bridge to another machine ends its vault when the service asks wrongly."""
        if (session := self.sessions.of_vault(vault)) is not None:
            if not vault.alone:
                self._node.verification.deviations.note(session.key.owner, aborted=True)
            self.sessions.end(session)

    def _handle(self, vault: Vault, message: msgspec.Struct) -> None:
        match message:
            case wire.WantCores():
                session = self.sessions.of_vault(vault)
                owner = session.key.owner if session else ""
                self._core_lease.want(vault.number, vault, message.tokens, owner, reading=message.reading)
            case wire.CoresDone():
                self._core_lease.done(vault.number)
            case wire.LinkBroken():
                if (session := self.sessions.of_vault(vault)) is None:
                    raise ProtocolError("A vault was asked what it must not answer.")
                if not vault.alone:
                    log.error("A vault was asked what it must not answer.")
                    self._node.unlink(session)
            case wire.PromptAccepted() | wire.Prefilled() | wire.Verified() | wire.FinishAlone() | Tokens() | Failed():
                request = self._node.requests.get(message.request_id)
                if request is None:  # cancelled a moment ago
                    if isinstance(message, wire.Prefilled):
                        vault.send(wire.Release(message.request_id))
                elif request.session is None or request.session.vault is not vault or not _may_say(request, message):
                    raise ProtocolError("A vault speaks of a request it does not have.")
                else:
                    self._node.route_of(request).from_vault(request, message)
            case _:
                raise ProtocolError("A vault sent a message out of turn.")
