"""The relay's side towards vaults: sessions, waiting requests, links to the service. Prompts are bytes here. A vault
that sends a message out of turn is ended: its endpoint raises ProtocolError."""

from collections.abc import Callable
from functools import partial

import msgspec

from cloister.config import ControllerSettings
from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.requests import Request, Requests
from cloister.controller.service import Service
from cloister.controller.sessions import Session, Sessions
from cloister.controller.vault_queue import PendingRequest, VaultQueue
from cloister.controller.vaults import Vault, Vaults
from cloister.errors import ProtocolError, VaultLost
from cloister.messages.controller_vault import CoresDone, LinkBroken, Prefilled, PromptAccepted, Release, WantCores
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.process.watchdog import SILENT

NO_VAULT = VaultLost(
    "This server's vault host cannot be used now.",
    hint="Its operator finds the reason in the server's output. Try again later.",
)


class VaultSide:
    def __init__(
        self,
        settings: ControllerSettings,
        requests: Requests,
        core_lease: LeaseKeeper,
        serve: Callable[[PendingRequest], None],
        from_vault: Callable[[Request, msgspec.Struct], None],
    ) -> None:
        self._requests, self._core_lease, self._from_vault = requests, core_lease, from_vault
        self._service: Service | None = None
        self.queue = VaultQueue(settings.max_waiting_for_vaults, serve, lambda owner: self.sessions.held_by(owner))
        self.vaults = Vaults(
            settings.spare_vaults,
            settings.vault_ready_s,
            self._handle,
            self._vault_ended,
            self.queue.move,
            SILENT["vault"].beyond(settings.vault_deadline_s),
        )
        self.sessions = Sessions(
            self.vaults,
            settings.max_vaults,
            settings.session_idle_s,
            self._session_begins,
            self._session_ended,
            lambda: requests.active_tenants.several,
        )

    def service_up(self, service: Service) -> None:
        self._service = service
        for vault in self.sessions.vaults():
            self._session_begins(vault)

    def service_gone(self) -> None:
        self._service = None

    def leave(self, session: Session, request_id: int) -> None:
        self.sessions.leave(session, request_id)
        self.queue.move()

    def _session_begins(self, vault: Vault) -> None:
        if self._service is not None:  # not before the vault is sealed: then no other process maps its link
            vault.when_sealed(partial(self._attach, vault))

    def _attach(self, vault: Vault) -> None:
        if self._service is not None:
            self._service.attach(vault.number, vault.link, vault.place)

    def _session_ended(self, session: Session) -> None:
        service = self._service
        if service is not None:
            service.detach(session.vault.number)
        self._core_lease.gone(session.vault.number)
        for request_id in list(session.requests):
            if (request := self._requests.get(request_id)) is not None:
                if request.holder == "service" and service is not None:
                    service.send(Cancel(request_id))
                lost = VaultLost.because("vault_lost") if session.vault.trouble is None else NO_VAULT
                self._requests.fail(request, lost)
        self.queue.move()

    def _vault_ended(self, vault: Vault) -> None:
        if (session := self.sessions.of_vault(vault)) is not None:
            self.sessions.end(session)

    def _handle(self, vault: Vault, message: msgspec.Struct) -> None:
        match message:
            case WantCores():
                session = self.sessions.of_vault(vault)
                owner = session.key.owner if session else ""
                self._core_lease.want(vault.number, vault, message.tokens, owner, reading=message.reading)
            case CoresDone():
                self._core_lease.done(vault.number)
            case LinkBroken():
                raise ProtocolError("A vault was asked what it must not answer.")
            case PromptAccepted() | Prefilled() | Tokens() | Failed():
                request = self._requests.get(message.request_id)
                if request is None:  # cancelled a moment ago
                    if isinstance(message, Prefilled):
                        vault.send(Release(message.request_id))
                elif request.session is None or request.session.vault is not vault or request.holder != "vault":
                    raise ProtocolError("A vault speaks of a request it does not have.")
                else:
                    self._from_vault(request, message)
            case _:
                raise ProtocolError("A vault sent a message out of turn.")
