"""The controller's side of `mpc`: requests go to the process that deals shares, no vault; and its keeper."""

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

import msgspec

from cloister.config import MpcSettings, cache_folder
from cloister.controller.external_level import ExternalRoute
from cloister.controller.requests import Request
from cloister.controller.vault_side import PendingRequest
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, ServiceUnavailable, StartingUp, VaultLost
from cloister.levels import LEVELS
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.types import VERSION
from cloister.models.source import ModelFolder
from cloister.process.handle import ModuleHandle
from cloister.process.supervisor import Supervisor
from cloister_mpc.controller_messages import (
    FromLocalParties,
    FromMpcClient,
    LocalPartiesReady,
    MpcClientReady,
    StartLocalParties,
    StartMpcClient,
)
from cloister_mpc.offer import require_memory

log = logging.getLogger(__name__)

CLIENT, LOCAL_PARTIES = "cloister_mpc.client.process", "cloister_mpc.local_parties"
SECONDS_FOR_CLIENT_TO_END = 5.0
SECONDS_FOR_PARTIES_TO_END = 30.0
ABOUT_SECONDS_TO_START = 90
"""To start three parties and deal them the default model on two cores: the estimate for a first request."""


class MpcRoute(ExternalRoute):
    """Frontend → MPC client → frontend. The client may only speak of requests it has."""

    level = LEVELS["mpc"]

    client: "MpcClientKeeper | None" = None  # once the level has started

    def ask(self, asked: PendingRequest) -> None:
        ask = asked.ask
        try:
            if self.client is None:
                raise LevelUnavailable("This server does not offer the level mpc.", param="protection")
            self.client.assign(asked.assignment)
        except CloisterError as reason:
            for request_id in asked.params:
                self.node.requests.refuse(request_id, reason)
        else:
            for request_id, params in asked.params.items():
                self.node.requests.add(Request(request_id, ask.tenant, self.level, params, "mpc"))

    def cancel(self, request: Request) -> None:
        assert self.client is not None
        self.client.send(Cancel(request.request_id))

    def handle(self, message: msgspec.Struct) -> None:
        """A message of the client about a request, which may have been cancelled a moment ago."""
        if not isinstance(message, PromptAccepted | Tokens | Failed):
            raise ProtocolError("The client sent a message out of turn.")
        request = self.node.requests.get(message.request_id)
        if request is None or request.holder != "mpc":
            return
        if isinstance(message, PromptAccepted):
            self.prompt_accepted(request, message.prompt_tokens)
        else:
            self.node.requests.advance(request, message)

    def client_gone(self) -> None:
        for request in self.node.requests.held_by("mpc"):
            self.node.requests.fail(request, VaultLost.because("vault_lost"))


class MpcClientKeeper:
    """`route` gets the client's messages about requests. The first request starts the client if `start` did not."""

    def __init__(
        self,
        folder: ModelFolder,
        settings: MpcSettings,
        route: MpcRoute,
        *,
        vocabulary: int,
        max_context: int,
        identity: bytes = b"",
    ) -> None:
        self._folder, self._settings, self._route = folder, settings, route
        self._start_client = partial(
            StartMpcClient,
            VERSION,
            folder.name,
            str(folder.path),
            max_context=min(max_context, settings.max_context),
            vocabulary=vocabulary,
            draft_tokens=settings.draft_tokens,
            identity=identity,
            cache=settings.cache,
        )
        self._local_parties: ModuleHandle[LocalPartiesReady] | None = None
        self._client: ModuleHandle[MpcClientReady] | None = None
        self._up = False
        self._shares_folder: SharesFolder | None = None
        self._begun = 0.0
        self._trouble: CloisterError | None = None
        self._supervisor = Supervisor("MPC client or a party", self._start, self._clean_up)

    @property
    def client_pid(self) -> int | None:
        return self._client.pid if self._client and self._up else None

    def start(self) -> None:
        """Start what is needed, unless that is being done already; ServiceUnavailable if there is no memory for it."""
        if not self._begun:
            if self._settings.parties is None:
                require_memory(self._folder)
            self._begun = monotonic()
            self._supervisor.keep()

    def assign(self, prompt: AssignPrompt) -> None:
        """Give the client a prompt; StartingUp, with an honest guess, while there is none."""
        if self._up and self._client is not None:
            self._client.send(prompt)
            return
        self.start()
        if self._trouble is not None:
            raise ServiceUnavailable(f"The level mpc does not start: {self._trouble.message}", hint=self._trouble.hint)
        left = max(5, round(ABOUT_SECONDS_TO_START - (monotonic() - self._begun)))
        raise StartingUp(
            "The parties of the level mpc are being started and dealt the model, which takes a minute or two.",
            hint="Try again then, or choose another level.",
            retry_after=left,
        )

    def send(self, message: msgspec.Struct) -> None:
        if self._up and self._client is not None:
            self._client.send(message)

    async def close(self) -> None:
        await self._supervisor.close()
        if self._shares_folder is not None:
            self._shares_folder.clear()  # first: parties may take longer to end than the server has
        if self._client is not None:
            await self._client.close(SECONDS_FOR_CLIENT_TO_END)
        if self._local_parties is not None:
            await self._local_parties.close(SECONDS_FOR_PARTIES_TO_END)
        self._forget_shares()

    async def _clean_up(self) -> None:
        self._up = False
        self._route.client_gone()
        self._begun = monotonic()
        if self._client is not None:
            await self._client.close(SECONDS_FOR_CLIENT_TO_END)

    async def _start(self) -> None:
        try:
            await self._start_once()
        except CloisterError as reason:
            self._trouble = reason
            raise

    async def _start_once(self) -> None:
        parties = self._settings.parties or await self._started_parties()
        self._client = ModuleHandle(
            "client", CLIENT, FromMpcClient, MpcClientReady, handle=self._handle, on_end=self._supervisor.ended
        )
        self._client.send(self._start_client(parties=str(parties)))
        await self._client.ready
        self._up, self._trouble = True, None
        log.info("The level mpc is served.")

    def _handle(self, message: msgspec.Struct) -> None:
        if self._client is None or not self._client.started:
            raise ProtocolError("The client spoke before it was ready.")
        self._route.handle(message)

    def _forget_shares(self) -> None:
        if self._shares_folder is not None:
            self._shares_folder.remove()
            self._shares_folder = None

    async def _started_parties(self) -> Path:
        if self._local_parties is None or not self._local_parties.endpoint.open:
            if self._local_parties is not None:
                await self._local_parties.close(SECONDS_FOR_PARTIES_TO_END)
            self._forget_shares()
            self._shares_folder = SharesFolder(cache_folder() / "mpc")
            self._local_parties = ModuleHandle(
                "parties", LOCAL_PARTIES, FromLocalParties, LocalPartiesReady, on_end=self._supervisor.ended
            )
            self._local_parties.send(
                StartLocalParties(VERSION, self._folder.name, str(self._folder.path), str(self._shares_folder.path))
            )
        return Path((await asyncio.shield(self._local_parties.ready)).parties)


_PREFIX, _OWNER = "serve-", "owner"


class SharesFolder:
    """Local parties' shares are together the weights: private, swept after a kill. Not in /tmp: gigabytes."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._owner = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def clear(self) -> None:
        """Remove all but the lock. The next server removes what a party that is still starting writes after this."""
        for each in self.path.glob("*"):
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != _OWNER:
                each.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._owner)


def sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # locked by its owner, or being made or swept now
            owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)
