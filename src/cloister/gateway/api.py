"""What every endpoint has at hand, who is asking, and the way from a request's body to its answer.

At the level `open` the prompt is read here, a long one in a thread, so that it does not hold up other users' tokens. At
the other levels this process does not look into it. This module keeps no prompt.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, TypeVar, cast

import msgspec
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.responses import Response

from cloister.backend.base import Backend, OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.errors import InvalidRequest, ModelNotFound, PromptTooLong
from cloister.gateway.answer import Answer, Reply, StreamedAnswer
from cloister.gateway.choice import Choice, Echo, StopStrings
from cloister.gateway.generation import Generation, WatchedAnswer, WatchedAnswers
from cloister.gateway.guard import read_body
from cloister.gateway.hiding import Hiding
from cloister.gateway.metrics import Metrics
from cloister.gateway.schema import (
    MAX_CHOICES,
    Forms,
    GenerationRequest,
    SealedRequest,
    prompts_of,
    sealed_request_of,
)
from cloister.gateway.terms import Levels, Session, choose_session, header_terms
from cloister.json_names import refuse_repeated_names
from cloister.keys import Caller, KeyRing
from cloister.levels import Level, PrivateLevel, ReadLevel
from cloister.messages.controller_frontend import Serving
from cloister.messages.prompts import ChatPrompt, Prompt, SealedPrompt, TextPrompt, write_prompt
from cloister.messages.types import SamplingParams
from cloister.obfuscation.index import Prf, new_secret
from cloister.prompts.json_prompt import check_size, invalid_from
from cloister.prompts.reading import Marked, PromptReading, ReadPrompt
from cloister.prompts.tokenizer import GenerationDefaults, Tokenizer
from cloister.request_fields import LEVEL_HEADER, SESSION_HEADER

T = TypeVar("T", int, float)
NO_DEFAULTS = GenerationDefaults()
bearer = HTTPBearer(auto_error=False, description="An API key of this server.")

_LONG_CHARACTERS = 8192
_MANY_MESSAGES = 64
_MANY_TOKENS = 2048
# Below this, dividing logits by the temperature overflows; the limit of the distribution is the greedy choice anyway.
_GREEDY_BELOW = 1e-4
_SMALLEST_TOP_P = 1e-6
_SEED_MASK = 2**63 - 1


class PromptReader:
    """Reads prompts for the level `open`, the way vaults do."""

    def __init__(self, tokenizer: Tokenizer, serving: Serving) -> None:
        self._tokenizer = tokenizer
        self._reading = PromptReading(tokenizer, serving.vocabulary, serving.max_context)
        # One thread: many long prompts at once must not take every core from the engine.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt-reader")

    async def read(self, prompt: Prompt) -> ReadPrompt:
        """The prompt's tokens, and how many of them are public."""
        if _is_long(prompt):
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._reading.read, prompt)
        # Many short prompts in one request are as long as one long one: let others in between.
        await asyncio.sleep(0)
        return self._reading.read(prompt)

    async def by_block(self, tokens: Sequence[int], block_tokens: int) -> tuple[str, tuple[int, ...]]:
        """What a detector is given: the tokens' text, and where each block of them ends in it."""
        shown = partial(text_by_block, tokens, self._tokenizer, block_tokens)
        if len(tokens) > _MANY_TOKENS:
            return await asyncio.get_running_loop().run_in_executor(self._thread, shown)
        return shown()

    def start(self) -> None:
        """Start the thread now, for processes that cannot start one later."""
        self._thread.submit(int).result()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, ChatPrompt):
        return (
            len(prompt.messages) > _MANY_MESSAGES
            or sum(len(message.content) for message in prompt.messages) > _LONG_CHARACTERS
        )
    return isinstance(prompt, TextPrompt) and len(prompt.text) > _LONG_CHARACTERS


@dataclass(frozen=True, slots=True)
class CallContext:
    """Who asks, until when, and what the headers say of protection and session."""

    caller: Caller
    deadline: float
    protection: str | None
    session: str | None


@dataclass(frozen=True)
class Api:
    """The parts of one gateway."""

    backend: Backend
    tokenizer: Tokenizer
    prompts: PromptReader
    model: str
    created: int
    settings: GatewaySettings
    keys: KeyRing
    levels: Levels
    watched: WatchedAnswers
    metrics: Metrics
    index: Prf = field(default_factory=lambda: Prf(new_secret()))
    """At `obfuscated`, what the places of real answers come from over plain HTTP."""

    async def answer(self, request: Request, asked: CallContext, forms: Forms, reply_kind: type[Reply]) -> Answer:
        """The response to a body of these forms: it generates every choice of every prompt, and sends them."""
        body = self._body(await read_body(request, self.settings), forms, sealed_request_of(request))
        level = self.levels.choose(body.protection, asked.protection)
        level.refuse(body.requested, logits=body.mpc_reveal == "logits")
        prompts = prompts_of(body.prompts, forms.field, level, sealed_request_of(request))
        session = choose_session(body.session, asked.session)
        if len(prompts) > 1:
            level.refuse({"prompt"} if level.obfuscates else ())
        if (body.n or 1) * len(prompts) > MAX_CHOICES:
            raise InvalidRequest(f"n times the number of prompts may be at most {MAX_CHOICES}.", param="n")
        default_tokens = min(forms.default_tokens, level.default_tokens or forms.default_tokens)
        stops = StopStrings(body.stop_strings)
        choices: list[Choice] = []
        jobs: list[OpenJob | VaultJob] = []
        tenant = asked.caller.tenant
        hiding = Hiding.of(body, prompts[0], tenant, session, self.index) if level.obfuscates else None
        for number, prompt in enumerate(prompts):
            if hiding is not None:
                prompt = hiding.hide(prompt)
            job = await self._job(prompt, level, session, asked.caller, body.cache_salt or "")
            if hiding is not None and isinstance(job, VaultJob):
                job = replace(job, obfuscation=hiding.params)
            params = self._params(body, level, job, default_tokens)
            echo = echo_of(prompt, job, self.tokenizer) if body.echoes and isinstance(job, OpenJob) else None
            seeds = [choice_seed(body.seed, which) for which in range(body.n or 1)]
            for seed in seeds if hiding is None else seeds * (1 + hiding.params.fakes):
                seeded = msgspec.structs.replace(params, seed=seed)
                choices.append(Choice(len(choices), seeded, self.tokenizer, stops, prompt=number, echo=echo))
                jobs.append(job)
        reply = reply_kind(self.model, int(time.time()), self.tokenizer, include_usage=body.include_usage)
        watched = WatchedAnswer(reply.id, tenant, level.name)
        winnow = hiding.winnow if hiding is not None else None
        generation = Generation(self.backend, watched, choices, jobs, self.watched, self.metrics, winnow)
        headers = {LEVEL_HEADER: level.name, **({SESSION_HEADER: session.name} if session.keep else {})}
        return (StreamedAnswer if body.stream else Answer)(generation, reply, asked.deadline, headers)

    def _body(self, raw: bytes, forms: Forms, sealed: SealedRequest | None) -> GenerationRequest:
        kind = forms.sealed if sealed is not None and sealed.counts_prompts(raw, forms.field) else forms.plain
        try:
            body = kind.model_validate_json(raw)
        except ValidationError as wrong:
            raise invalid_from(wrong) from None
        refuse_repeated_names(raw)
        body.refuse_unknown()
        if body.model != self.model:
            raise ModelNotFound("The model asked for is not served here.", hint=f"This server has {self.model!r}.")
        return body

    async def _job(
        self, prompt: Prompt | SealedPrompt, level: Level, session: Session, caller: Caller, salt: str
    ) -> OpenJob | VaultJob:
        """The prompt as the backend wants it: read here where the level has this process read it, unread otherwise."""
        unread: bytes | SealedPrompt
        if isinstance(prompt, SealedPrompt):
            unread = prompt
        elif level.uses_vault:
            unread = write_prompt(prompt)
            check_size(len(unread))
        else:
            read = await self.prompts.read(prompt)
            block = self.backend.ready.block_tokens
            # Who marks something as public says where that ends: nothing after it is shown, so nothing is shared.
            may_share = read.tokens[: read.public] if read.marked else read.tokens
            shown = await self.prompts.by_block(may_share, block) if level.examined and may_share else ()
            return OpenJob(read.tokens, read.public, cast(ReadLevel, level.name), salt, *shown)
        return VaultJob(cast(PrivateLevel, level.name), session.name, session.keep, unread, caller.trust_group, salt)

    def _params(
        self, body: GenerationRequest, level: Level, job: OpenJob | VaultJob, default_tokens: int
    ) -> SamplingParams:
        ready = self.backend.ready
        prompt_tokens = len(job.prompt) if isinstance(job, OpenJob) else None
        max_tokens = answer_tokens(prompt_tokens, body.token_limit, default_tokens, ready.max_context)
        refused = {each.param: None for each in level.refuses if each.param in ("top_p", "top_k", "min_p")}
        defaults = replace(self.tokenizer.generation, **refused)
        return sampling_params(body, max_tokens, ready.vocabulary, self.tokenizer.stop_tokens, defaults)


def text_by_block(tokens: Sequence[int], tokenizer: Tokenizer, block_tokens: int) -> tuple[str, tuple[int, ...]]:
    """The text of the tokens, and where each block of them ends in it. A character that is cut by a block's end belongs
    to the next."""
    stream, pieces, ends, length = tokenizer.stream(), [], [], 0
    for start in range(0, len(tokens), block_tokens):
        pieces.append(stream.push(tokens[start : start + block_tokens]))
        length += len(pieces[-1])
        ends.append(length)
    pieces.append(stream.finish())
    return "".join(pieces), (*ends[:-1], length + len(pieces[-1]))


def answer_tokens(prompt_tokens: int | None, asked: int | None, default: int, max_context: int) -> int:
    """How many tokens the answer may have: what was asked for, or what the context has room for if that is less.

    PromptTooLong when there is no room at all. Where the prompt's length is not known here (None), whoever reads the
    prompt goes by the same rule.
    """
    room = max_context - (1 if prompt_tokens is None else prompt_tokens)
    wanted = default if asked is None else asked
    if room < min(wanted, 1):
        raise PromptTooLong(
            f"The prompt has {prompt_tokens} tokens; prompt and answer together may have {max_context}.",
            param="prompt",
            hint="Shorten the prompt.",
        )
    return min(wanted, room)


def sampling_params(
    body: GenerationRequest,
    max_tokens: int,
    vocabulary: int,
    stop_tokens: tuple[int, ...],
    defaults: GenerationDefaults = NO_DEFAULTS,
) -> SamplingParams:
    """The parameters of every choice, but for seeds; InvalidRequest if they name tokens the model does not have.

    What the request leaves open, the model's own defaults say; what they leave open too, OpenAI's.
    """
    temperature = _first(body.temperature, defaults.temperature, 1.0)
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    if bias and max(bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias: Token ids must be below {vocabulary}.", param="logit_bias")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_k=min(max(_first(body.top_k, defaults.top_k, 0), 0), vocabulary),
        top_p=max(_first(body.top_p, defaults.top_p, 1.0), _SMALLEST_TOP_P),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logprobs=body.alternatives,
        prompt_logprobs=body.alternatives if body.echoes else None,
        logit_bias=bias,
        stop_tokens=() if body.ignore_eos else stop_tokens,
        mpc_reveal=body.mpc_reveal or "token",
    )


def _first(asked: T | None, default: T | None, otherwise: T) -> T:
    return asked if asked is not None else default if default is not None else otherwise


def choice_seed(seed: int | None, choice: int) -> int:
    """The seed of one choice: the request's own for the first, derived from it for the others; random without one."""
    if seed is None:
        return secrets.randbits(63)
    if choice == 0:
        return seed & _SEED_MASK
    digest = hashlib.sha256(f"cloister choice {choice} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") & _SEED_MASK


def echo_of(prompt: Prompt | SealedPrompt, job: OpenJob, tokenizer: Tokenizer) -> Echo:
    """The prompt as it was read: without its tags, or as the text of its tokens."""
    if isinstance(prompt, TextPrompt):
        return Echo(Marked.of(prompt.text, public=prompt.public, param="prompt").text, job.prompt)
    return Echo(tokenizer.decode(job.prompt), job.prompt)


def json_response(value: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")


def api_of(request: Request) -> Api:
    api = request.app.state.api
    assert isinstance(api, Api)
    return api


def caller_of(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Caller:
    """Whose key came with the request; Unauthorized otherwise."""
    return api_of(request).keys.caller(credentials.credentials if credentials else None)


async def _asked(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
) -> CallContext:
    timeout = api_of(request).settings.request_timeout_s
    deadline = asyncio.get_running_loop().time() + timeout
    return CallContext(caller_of(request, credentials), deadline, *header_terms(request.headers.items()))


AskedBy = Annotated[CallContext, Depends(_asked)]
