"""A client in this process, as a Backend: only shares leave it, only `mpc` is served."""

import asyncio
import itertools
from collections.abc import Callable

from cloister.backend.base import Backend, OpenJob, VaultJob
from cloister.backend.stream import Mailbox, TokenStream
from cloister.errors import LevelUnavailable
from cloister.levels import MPC
from cloister.messages.controller_frontend import Serving
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Cancel, Failed, Stats, Tokens
from cloister.messages.lifecycle import raised
from cloister.messages.prompts import SealedPrompt
from cloister.messages.types import SamplingParams
from cloister_mpc.client.client import Client, Reply


class ClientBackend(Backend):
    """`make_client` gets the function that takes what the client says."""

    def __init__(
        self, make_client: Callable[[Callable[[Reply], None]], Client], vocabulary: int, max_context: int
    ) -> None:
        self._serving = Serving(vocabulary, max_context, 0, 16, "mpc", levels=(MPC,))
        self._client = make_client(self._hear)
        self._ids = itertools.count(1)
        self._understood: dict[int, asyncio.Future[int]] = {}
        self._events: dict[int, Mailbox] = {}
        self._counted = [0, 0]

    @property
    def ready(self) -> Serving:
        return self._serving

    async def generate(self, tenant: str, job: OpenJob | VaultJob, params: SamplingParams) -> TokenStream:
        if isinstance(job, OpenJob) or isinstance(job.prompt, SealedPrompt):
            raise LevelUnavailable("Here prompts are served at the level 'mpc' alone.", param="protection")
        request_id = next(self._ids)
        events = self._events[request_id] = Mailbox()
        understood = self._understood[request_id] = asyncio.get_running_loop().create_future()
        self._client.handle(AssignPrompt(request_id, job.level, job.prompt, params))
        try:
            prompt_tokens = await understood
        except BaseException:
            self._leave(request_id)
            raise
        return TokenStream(request_id, prompt_tokens, events, lambda: self._leave(request_id))

    async def stats(self) -> Stats:
        return Stats(running=len(self._events), prompt_tokens=self._counted[0], output_tokens=self._counted[1])

    async def close(self) -> None:
        await self._client.close()

    def _hear(self, said: Reply) -> None:
        request_id = said.request_id
        if isinstance(said, PromptAccepted):
            self._counted[0] += said.prompt_tokens
            self._understood.pop(request_id).set_result(said.prompt_tokens)
            return
        ended = isinstance(said, Failed) or said.finish is not None
        events = self._events.pop(request_id, None) if ended else self._events.get(request_id)
        if isinstance(said, Failed) and (waiting := self._understood.pop(request_id, None)):
            waiting.set_exception(raised(said))
        elif events is not None:
            self._counted[1] += len(said.tokens) if isinstance(said, Tokens) else 0
            events.put(said)

    def _leave(self, request_id: int) -> None:
        self._understood.pop(request_id, None)
        if self._events.pop(request_id, None) is not None:
            self._client.handle(Cancel(request_id))
