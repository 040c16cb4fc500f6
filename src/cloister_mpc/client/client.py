"""Reads a prompt, has the parties compute on shares of it, joins the tokens; one answer at a time, others wait."""

import asyncio
from collections.abc import Callable

import msgspec

from cloister.errors import (
    CloisterError,
    InvalidRequest,
    LevelUnavailable,
    PartyLost,
    PromptTooLong,
    QueueFull,
    SetupError,
    where_raised,
)
from cloister.levels import MPC
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.lifecycle import failed
from cloister.models.source import ModelFolder
from cloister.process.supervisor import cancelled
from cloister.prompts.reading import PromptReading
from cloister.prompts.tokenizer import Tokenizer
from cloister.vault.reading import opened
from cloister_mpc.client.answer import Drafts, Pace, Request, answer, chooser_for
from cloister_mpc.client.passes import ModelAtParties

MAX_WAITING = 8  # answers that may wait for their turn: each takes minutes

ANSWER_STEP = 16  # the parties learn how long the answer may get in multiples of this, and keep few programs

Reply = PromptAccepted | Tokens | Failed


class Client:
    """`say` gets replies about requests. `draft_tokens`: how many tokens are guessed ahead; 0: none."""

    def __init__(
        self,
        parties: ModelAtParties,
        reading: PromptReading,
        say: Callable[[Reply], None],
        *,
        max_context: int,
        draft_tokens: int = 0,
    ) -> None:
        self._parties = parties
        self._reading = reading
        self._say = say
        self._max_context = max_context
        self._draft_tokens = draft_tokens
        self._turn = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._seconds_per_token: float | None = None

    def handle(self, message: AssignPrompt | Cancel) -> None:
        if isinstance(message, Cancel):
            if task := self._tasks.pop(message.request_id, None):
                task.cancel()
            return
        try:
            requests = self._read(message)
        except Exception as error:
            for request_id in (message.request_id, *(each.request_id for each in message.also)):
                self._say(_failed(request_id, error))
            return
        for request in requests:
            self._say(PromptAccepted(request.id, len(request.prompt)))
            self._tasks[request.id] = asyncio.create_task(self._serve(request))

    async def close(self) -> None:
        await cancelled(*self._tasks.values())

    def _read(self, message: AssignPrompt) -> list[Request]:
        params = message.params
        if message.level != MPC:
            raise LevelUnavailable(f"The level '{message.level}' is not served by the parties.", param="protection")
        if len(self._tasks) > MAX_WAITING:
            raise QueueFull("Too many requests wait for the parties already.", retry_after=60)
        if params.max_tokens < 1:
            raise InvalidRequest("At least one token must be asked for.", param="max_tokens")
        prompt = self._reading.read(opened(message.prompt)).tokens
        left = self._max_context - len(prompt)
        if left < 1:
            raise PromptTooLong(
                f"The prompt has {len(prompt)} tokens; at 'mpc' prompt and answer may have {self._max_context} here.",
                param="prompt",
                hint="Shorten the prompt, or choose another level.",
            )
        params = msgspec.structs.replace(params, max_tokens=min(params.max_tokens, left))
        seeds = ((message.request_id, params.seed), *((each.request_id, each.seed) for each in message.also))
        wanted = [(one, params.seeded(seed)) for one, seed in seeds]
        vocabulary = self._parties.shape.vocabulary
        return [Request(one, prompt, each, chooser_for(prompt, each, vocabulary)) for one, each in wanted]

    async def _serve(self, request: Request) -> None:
        try:
            async with self._turn:
                await self._answer(request)
        except Exception as error:
            if request.id in self._tasks:
                self._say(_failed(request.id, error))
        finally:
            self._tasks.pop(request.id, None)

    async def _answer(self, request: Request) -> None:
        pace = Pace(self._parties.shape.layers, self._seconds_per_token)

        def layer_done(done: int) -> None:
            if (progress := pace.layer_done(done)) and request.id in self._tasks:
                self._say(Tokens(request.id, progress=progress))

        layer_done(0)
        new_tokens = -(-request.params.max_tokens // ANSWER_STEP) * ANSWER_STEP
        passes = await self._parties.open(len(request.prompt), new_tokens, request.chooser.kind, layer_done)
        try:
            async for tokens in answer(request, passes, Drafts(self._draft_tokens), pace):
                self._say(tokens)
        finally:
            self._seconds_per_token = pace.seconds_per_token
            await passes.close()


def make_client(
    parties: ModelAtParties,
    folder: ModelFolder,
    say: Callable[[Reply], None],
    *,
    max_context: int,
    vocabulary: int | None = None,
    draft_tokens: int = 0,
) -> Client:
    """SetupError if the parties' model is not the folder's."""
    if vocabulary is not None and vocabulary != parties.shape.vocabulary:
        raise SetupError(
            f"The parties' model has a vocabulary of {parties.shape.vocabulary}, ours of {vocabulary}.",
            hint="Serve the model that was dealt to them.",
        )
    tokenizer = Tokenizer(folder)
    tokenizer.warm()
    reading = PromptReading(tokenizer, parties.shape.vocabulary, max_context)
    return Client(parties, reading, say, max_context=max_context, draft_tokens=draft_tokens)


def _failed(request_id: int, error: Exception) -> Failed:
    """The error in our own words: libraries put their input into theirs."""
    if not isinstance(error, CloisterError):
        error = PartyLost(f"The computation failed ({where_raised(error)}).", hint="Send the request again.")
    return failed(request_id, error)
