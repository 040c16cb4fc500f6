"""POST /v1/embeddings: a vector for each input. Inputs are prompts without an answer, and computed as prompts are."""

import asyncio
import time
from base64 import b64encode
from collections.abc import Sequence
from math import hypot
from struct import pack, unpack
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, WithJsonSchema
from starlette.responses import Response

from cloister.backend.base import Job, OpenJob, VaultJob
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.fairness import ANONYMOUS
from cloister.gateway.answer import Answer, Reply, Usage, encode
from cloister.gateway.api import Api, Call, RequestSession, api_of
from cloister.gateway.choice import Choice, Delta, StopStrings
from cloister.gateway.completions import BUDGET_CONTEXTS, body_of, marked, most_read
from cloister.gateway.generation import Generation, WatchedAnswer
from cloister.gateway.guard import read_body
from cloister.gateway.openapi import generation_docs
from cloister.gateway.schema import (
    LISTS,
    STRINGS,
    TEXT,
    TOKENS,
    KnownFields,
    SealedCount,
    Whole,
    given_prompts,
    prompts_of,
    sealed_request_of,
)
from cloister.gateway.tool_fields import AnyPrompt
from cloister.levels import Level, PrivateLevel, ReadLevel
from cloister.messages.generation import Tokens
from cloister.messages.prompts import SealedPrompt, write_prompt
from cloister.messages.types import MAX_WIDTH, SamplingParams
from cloister.prompts.json_prompt import check_size
from cloister.request_fields import LEVEL_HEADER, SESSION_HEADER

router = APIRouter()
MOST_INPUTS, MOST_TOKENS = 2048, 300_000  # as OpenAI's
MOST_NUMBERS = 1 << 21  # in one answer
AT_ONCE = 128  # inputs of one request that are with the engine, where other requests of the tenant wait, too
PARAMS = SamplingParams(max_tokens=0, embed=True)
_FORMS: tuple[dict[str, Any], ...] = ({**STRINGS, "maxItems": MOST_INPUTS}, {**LISTS, "maxItems": MOST_INPUTS})


class EmbeddingOptions(KnownFields):
    input: Any
    encoding_format: Literal["float", "base64"] | None = Field(default=None, description="base64: of float32s")
    dimensions: Annotated[int | None, Whole] = Field(
        default=None, ge=1, le=MAX_WIDTH, description="only the first numbers, with length 1 again"
    )
    verify: bool | None = Field(default=None, description="a vault makes them, also at 'open' and 'shared'")


class EmbeddingRequest(EmbeddingOptions):
    """The body of POST /v1/embeddings."""

    input: Annotated[
        Any,
        AfterValidator(lambda value: given_prompts(value, MOST_INPUTS)),
        WithJsonSchema({"anyOf": [TEXT, TOKENS, *_FORMS]}),
    ]


class SealedEmbeddingRequest(EmbeddingOptions):
    input: SealedCount


class Embedding(msgspec.Struct):
    embedding: list[float] | str
    index: int
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


@router.post("/v1/embeddings", **generation_docs("EmbeddingRequest", "EmbeddingList", streams=False))
async def embeddings(request: Request, call: Call) -> Response:
    """A vector for each input: the model's last hidden state of its last token, with length 1."""
    api, sealed = api_of(request), sealed_request_of(request)
    forms = EmbeddingRequest, SealedEmbeddingRequest
    body = body_of(await read_body(request, api.settings), "input", *forms, sealed, api.model)
    asked = api.levels.choose(body.protection, call.protection)
    level = api.levels.verified(asked) if body.verify else asked
    level, inputs = api.levels.way(level, PARAMS.requested), prompts_of(body.input, "input", asked, sealed)
    if asked.obfuscates:
        inputs = [marked(each) for each in inputs]
    _check(api.backend.ready.width, body.dimensions, len(inputs))
    tenant, session = call.caller.tenant, RequestSession.choose(body.session, call.session, call.caller.tenant)
    try:
        jobs = [await _job(request, each, level, session, call.caller.trust_group) for each in inputs]
    except InvalidRequest as error:
        raise _of_input(error) from None
    cost, budget = sum(most_read(job, api.backend.ready.max_context) for job in jobs), _budget(api)
    if tenant.startswith(ANONYMOUS) and cost > budget:
        message = f"One token pays for {budget} tokens of text; this call could take {cost}."
        raise InvalidRequest(message, param="input", hint="Send fewer inputs, or several calls.")
    choices = [Embedded(at, PARAMS, api.tokenizer, StopStrings(()), prompt=at) for at in range(len(jobs))]
    reply = EmbeddingReply(api, choices, body)
    watched = WatchedAnswer(reply.id, tenant, asked.name)
    generation = Embeddings(api.backend, watched, [*choices], jobs, api.watched, api.metrics)
    headers = {LEVEL_HEADER: asked.name, **({SESSION_HEADER: session.name} if session.keep else {})}
    return Answer(generation, reply, call.deadline, headers)


def _check(width: int, dimensions: int | None, inputs: int) -> None:
    if not width:
        raise InvalidRequest("This server makes no embeddings.", param="model")
    if dimensions is not None and dimensions > width:
        raise InvalidRequest(f"dimensions: This model's embeddings have {width}.", param="dimensions")
    if inputs > (most := min(MOST_INPUTS, MOST_NUMBERS // width)):
        hint = "Send them in several requests."
        raise InvalidRequest(f"input: One request may have {most} inputs of this model.", param="input", hint=hint)


def _budget(api: Api) -> int:
    return api.settings.token_budget or BUDGET_CONTEXTS * api.backend.ready.max_context


async def _job(request: Request, given: AnyPrompt, level: Level, session: RequestSession, group: str) -> Job:
    if isinstance(given, SealedPrompt) or level.uses_vault:
        unread = given if isinstance(given, SealedPrompt) else write_prompt(given)
        check_size(0 if isinstance(unread, SealedPrompt) else len(unread))
        return VaultJob(cast(PrivateLevel, level.name), session.name, session.keep, unread, group)
    read, context = await request.app.state.prompts.read(given), api_of(request).backend.ready.max_context
    if len(read.tokens) > context:
        message = f"An input has {len(read.tokens)} tokens; this model reads {context}."
        raise PromptTooLong(message, param="input", hint="Shorten it, or send its parts.")
    return OpenJob(read.tokens, read.public, cast(ReadLevel, level.name))


def _of_input(error: InvalidRequest) -> InvalidRequest:
    """Readers of prompts call it so."""
    if error.param == "prompt":
        error.param, error.message = "input", error.message.replace("prompt: ", "input: ", 1)
    return error


class Embedded(Choice):
    vector = b""

    def push(self, message: Tokens) -> None:
        self.vector = message.vector
        super().push(message)


class Embeddings(Generation):
    """The choices are inputs: `AT_ONCE` of them at a time, for an engine's queue has an end."""

    def __post_init__(self, jobs: Sequence[Job]) -> None:
        super().__post_init__(jobs)
        self._room = asyncio.Semaphore(AT_ONCE)

    async def _begin(self, prompt: int) -> None:
        async with self._room:
            if self.prompt_tokens <= MOST_TOKENS:
                await super()._begin(prompt)
            if self.prompt_tokens > MOST_TOKENS:  # a vault counts when it has read
                message = f"The inputs of one request may have {MOST_TOKENS} tokens."
                self._put(None, PromptTooLong(message, param="input", hint="Send them in several requests."))
            elif (carrier := self._carriers.get(prompt)) is not None:
                await carrier

    def _put(self, choice: Choice | None, message: Tokens | Exception) -> None:
        super()._put(choice, _of_input(message) if isinstance(message, InvalidRequest) else message)


class EmbeddingReply(Reply):
    id_prefix, chunk_object, first, nothing = "embd", "list", b"", b""

    def __init__(self, api: Api, choices: Sequence[Embedded], body: EmbeddingOptions) -> None:
        super().__init__(api.model, int(time.time()), api.tokenizer, include_usage=False)
        self._choices, self._dimensions = choices, body.dimensions
        self._in_base64 = body.encoding_format == "base64"

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        data = [Embedding(self._shown(choice.vector), choice.index) for choice in self._choices]
        return encode(EmbeddingList(data, self.model, EmbeddingUsage(usage.prompt_tokens, usage.total_tokens)))

    def events(self, index: int, delta: Delta) -> bytes:
        raise NotImplementedError  # embeddings are not streamed

    def _shown(self, vector: bytes) -> list[float] | str:
        if self._dimensions is not None and 4 * self._dimensions < len(vector):
            kept = unpack(f"<{self._dimensions}f", vector[: 4 * self._dimensions])
            length = hypot(*kept) or 1.0
            vector = pack(f"<{len(kept)}f", *(number / length for number in kept))
        return b64encode(vector).decode() if self._in_base64 else [*unpack(f"<{len(vector) // 4}f", vector)]
