"""POST /v1/chat/completions and POST /v1/completions: the way from a request's body to its answer."""

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Any, TypeVar, cast

import msgspec
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from cloister.backend.base import Job, OpenJob, VaultJob
from cloister.errors import FormRefused, InvalidRequest, ModelNotFound, PromptTooLong
from cloister.fairness import ANONYMOUS
from cloister.gateway import schema
from cloister.gateway.answer import Answer, ChatReply, Reply, StreamedAnswer
from cloister.gateway.api import Api, Call, CallContext, RequestSession, api_of
from cloister.gateway.choice import Choice, Echo, StopStrings
from cloister.gateway.completion_reply import CompletionReply
from cloister.gateway.generation import Generation, WatchedAnswer, Winnow
from cloister.gateway.guard import read_body
from cloister.gateway.openapi import generation_docs
from cloister.gateway.prompt_reader import PromptReader
from cloister.gateway.schema import MAX_CHOICES, Body, prompts_of, sealed_request_of
from cloister.gateway.tool_fields import AnyPrompt
from cloister.levels import Level, PrivateLevel, ReadLevel
from cloister.messages.prompts import (
    MAX_CALLS,
    ChatPrompt,
    ObfuscationParams,
    ObfuscationSecrets,
    Prompt,
    PromptField,
    SealedPrompt,
    TextPrompt,
    TokenPrompt,
    write_prompt,
)
from cloister.messages.types import SamplingParams
from cloister.obfuscation.elsewhere import refuse_biases
from cloister.obfuscation.index import REQUEST, Prf, new_secret
from cloister.prompts.json_prompt import check_size, invalid_from
from cloister.prompts.reading import Marked
from cloister.prompts.tokenizer import Tokenizer
from cloister.request_fields import LEVEL_HEADER, SESSION_HEADER, SUBSTITUTES_HEADER, refuse_repeated_names

T = TypeVar("T", int, float)
Form = TypeVar("Form", bound=schema.KnownFields)
router = APIRouter()

_GREEDY_BELOW = 1e-4  # dividing logits by a smaller temperature overflows, and the limit is the greedy choice
_SMALLEST_TOP_P = 1e-6
_SEED_MASK = 2**63 - 1
BUDGET_CONTEXTS = 16


@dataclass(frozen=True)
class Endpoint:
    """Its body's two forms, the field that tells them apart, its reply, and how long an answer is by default."""

    field: PromptField
    plain: type[Body]
    sealed: type[Body]
    reply: type[Reply]
    default_tokens: int


# Without a limit an answer could fill the context and hold its blocks for a long time; 16 is OpenAI's own default.
CHAT = Endpoint("messages", schema.ChatRequest, schema.SealedChatRequest, ChatReply, default_tokens=1024)
_FORMS = (schema.CompletionRequest, schema.SealedCompletionRequest)
COMPLETION = Endpoint("prompt", *_FORMS, CompletionReply, default_tokens=16)


@router.post("/v1/chat/completions", **generation_docs("ChatRequest", "ChatCompletion"))
async def chat_completions(request: Request, call: Call) -> Response:
    """Continue a conversation."""
    return await answer_to(request, call, CHAT, await read_body(request, api_of(request).settings))


@router.post("/v1/completions", **generation_docs("CompletionRequest", "Completion"))
async def completions(request: Request, call: Call) -> Response:
    """Continue one or several prompts."""
    return await answer_to(request, call, COMPLETION, await read_body(request, api_of(request).settings))


async def answer_to(request: Request, call: CallContext, endpoint: Endpoint, raw: bytes) -> Answer:
    api = api_of(request)
    kinds, sealed = (endpoint.field, endpoint.plain, endpoint.sealed), sealed_request_of(request)
    body: Body = body_of(raw, *kinds, sealed, api.model)
    asked = api.levels.choose(body.protection, call.protection)
    level = api.levels.verified(asked) if body.verify else asked
    prompts = prompts_of(getattr(body, endpoint.field), endpoint.field, asked, sealed_request_of(request))
    session = RequestSession.choose(body.session, call.session, call.caller.tenant)
    level = api.levels.way(level, _requested(body, prompts, session), logits=body.mpc_reveal == "logits")
    if asked.obfuscates and not level.obfuscates:
        prompts = [marked(prompt) for prompt in prompts]
    if isinstance(body, schema.ChatOptions):
        prompts = [body.completed(prompt) for prompt in prompts]
    prompts, form = await _formed(request, prompts, body.form, level)
    if (body.n or 1) * len(prompts) > MAX_CHOICES:
        raise InvalidRequest(f"n times the number of prompts may be at most {MAX_CHOICES}.", param="n")
    tenant = call.caller.tenant
    hiding = Hiding.of(api, body, prompts[0], tenant, session) if level.obfuscates else None
    if endpoint.reply.one_choice and hiding is not None and hiding.winnow is None:
        raise InvalidRequest("A sealed request at this level gets several answers, of which its client picks one.")
    stops = StopStrings(body.stop_strings)
    choices: list[Choice] = []
    jobs: list[Job] = []
    context, cost = api.backend.ready.max_context, 0
    for number, prompt in enumerate(prompts):
        job = await _job(request, prompt, level, session, call.caller.trust_group, body, hiding)
        params = _params(api, body, level, job, min(endpoint.default_tokens, level.default_tokens or 2**31))
        params = msgspec.structs.replace(params, grammar=form)
        echo = echo_of(prompt, job, api.tokenizer) if body.echoes and isinstance(job, OpenJob) else None
        seeds = [choice_seed(body.seed, which, drawn=not level.uses_vault) for which in range(body.n or 1)]
        prompts_read = 1 if hiding is None else 1 + hiding.params.fakes
        cost += prompts_read * (most_read(job, context) + params.max_tokens * len(seeds))
        for seed in seeds * prompts_read:
            seeded = msgspec.structs.replace(params, seed=seed)
            read_as = _read_as(api, body)
            choices.append(Choice(len(choices), seeded, api.tokenizer, stops, prompt=number, echo=echo, **read_as))
            jobs.append(job)
    if tenant.startswith(ANONYMOUS) and cost > (most := api.settings.token_budget or BUDGET_CONTEXTS * context):
        message = f"One token pays for {most} tokens of text; this call could take {cost}."
        raise InvalidRequest(message, param="max_tokens", hint="Ask for fewer or shorter answers, or in several calls.")
    reply = endpoint.reply(api.model, int(time.time()), api.tokenizer, include_usage=body.include_usage)
    reply.describe(body, choices[0].params)
    watched = WatchedAnswer(reply.id, tenant, asked.name)
    winnow = None if hiding is None else hiding.winnow
    generation = Generation(api.backend, watched, choices, jobs, api.watched, api.metrics, winnow)
    headers = {LEVEL_HEADER: asked.name, **({SESSION_HEADER: session.name} if session.keep else {})}
    if hiding is not None:
        headers[SUBSTITUTES_HEADER] = "kept" if session.keep else "fresh"
    if not body.stream:
        return Answer(generation, reply, call.deadline, headers)
    return StreamedAnswer(generation, reply, call.deadline, headers, api.settings.beat_ms / 1000)


def _requested(body: Body, prompts: Sequence[AnyPrompt], session: RequestSession) -> set[str]:
    """Also what the prompts show. Whether sealed ones hold earlier answers, their client says."""
    several = {"prompt"} if len(prompts) > 1 else set()
    turns = (turn for prompt in prompts if isinstance(prompt, ChatPrompt) for turn in prompt.messages)
    answered = not session.keep and any(turn.role == "assistant" for turn in turns)
    return body.requested | several | ({"history"} if answered else set())


def marked(prompt: AnyPrompt) -> AnyPrompt:
    """Its vault takes the tags out: it goes among no others. A sealed one was marked by its client."""
    if not isinstance(prompt, ChatPrompt | TextPrompt):
        return prompt
    return msgspec.structs.replace(prompt, hidden=ObfuscationSecrets(new_secret()))


def _read_as(api: Api, body: Body) -> dict[str, Any]:
    """How a choice's text is read: a chat has calls and reasoning beside content."""
    if not isinstance(body, schema.ChatOptions):
        return {}
    tools, most = body.offers_tools, 1 if body.parallel_tool_calls is False else MAX_CALLS
    early = bool(body.stream and tools and body.has_form)
    parser = api.parsing.parser(tools=tools, thinks=body.thinks, early=early)
    return {"parser": parser, "visible": api.parsing.markers(tools=tools), "most_calls": most}


_X = "x" * 64
_DEEP: Any = reduce(lambda inner, _: {_X: [_X, inner]}, range(14), cast(Any, _X))
_CALL = {"id": _X, "type": "function", "function": {"name": _X, "arguments": json.dumps({_X: _X})}}
_TURNS = [
    {"role": "user", "content": _X},
    {"role": "assistant", "tool_calls": [_CALL], "reasoning_content": _X},
    {"role": "tool", "content": _X, "tool_call_id": _X},
]
_TOOL = {"type": "function", "function": {"name": _X, "description": _X, "parameters": _DEEP}}
_CHAT = {"model": _X, "messages": _TURNS, "tools": [_TOOL], "chat_template_kwargs": {_X: _X}, "protection": _X}
_OTHER_WORDS = {
    "messages": json.dumps(_CHAT),
    **{field: json.dumps({"model": _X, field: _X, "protection": _X}) for field in ("prompt", "input")},
}


def most_read(job: Job, context: int) -> int:
    """Tokens of its prompt; one that is sealed, or read elsewhere, counts as long as it may be."""
    return context if isinstance(job.prompt, SealedPrompt) else min(len(job.prompt), context)


def body_of(
    raw: bytes,
    field: PromptField,
    plain: type[Form],
    sealed_form: type[Form],
    sealed: schema.SealedRequest | None,
    model: str,
) -> Form:
    is_sealed = sealed is not None and sealed.counts_prompts(raw, field)
    try:
        body = (sealed_form if is_sealed else plain).model_validate_json(raw)
    except ValidationError as wrong:
        raise invalid_from(wrong) from None
    finally:
        # The parser reads strings in pieces of 16 bytes and leaves the last ones on the stack: these take their place.
        plain.model_validate_json(_OTHER_WORDS[field])
    refuse_repeated_names(raw)
    body.refuse_unknown()
    if body.model != model:
        raise ModelNotFound("The model asked for is not served here.", hint=f"This server has {model!r}.")
    return body


async def _formed(
    request: Request, prompts: Sequence[AnyPrompt], form: str, level: Level
) -> tuple[Sequence[AnyPrompt], str]:
    """The form goes with each prompt to its vault, which checks it; or, checked, with the parameters."""
    if form and any(isinstance(prompt, SealedPrompt) for prompt in prompts):
        message = "response_format: In a sealed request a form is sealed with its prompt, for the vault alone."
        raise FormRefused(message, param="response_format", hint="Use a Cloister client.")
    if form:
        prompts = [msgspec.structs.replace(cast(Prompt, prompt), form=form) for prompt in prompts]
    if level.uses_vault:
        return prompts, ""
    reader: PromptReader = request.app.state.prompts
    if form := reader.form(cast(Prompt, prompts[0])):
        await reader.check(form)
    return prompts, form


async def _job(
    request: Request,
    prompt: AnyPrompt,
    level: Level,
    session: RequestSession,
    group: str,
    body: Body,
    hiding: "Hiding | None",
) -> Job:
    salt = body.cache_salt or ""
    if not isinstance(prompt, SealedPrompt) and not level.uses_vault:
        reader: PromptReader = request.app.state.prompts
        read = await reader.read(prompt)
        # A prompt with a mark shares what it marks and nothing after it.
        may_share = read.tokens[: read.public] if read.marked else read.tokens
        block = api_of(request).backend.ready.block_tokens
        shown = await reader.by_block(may_share, block) if level.examined and may_share else ()
        return OpenJob(read.tokens, read.public, cast(ReadLevel, level.name), salt, *shown)
    unread: bytes | SealedPrompt
    if isinstance(prompt, SealedPrompt):
        unread = prompt
    else:
        unread = write_prompt(prompt if hiding is None else hiding.hide(prompt))
        check_size(len(unread))
    obfuscation, named = None if hiding is None else hiding.params, (session.name, session.keep)
    return VaultJob(cast(PrivateLevel, level.name), *named, unread, group, salt, obfuscation, bool(body.verify))


@dataclass(frozen=True, slots=True)
class Hiding:
    """At `obfuscated`: over plain HTTP a secret orders the streams and picks the real answer. A repeated prompt has the
    same secret, so a service that lets requests fail sees nothing new. Of a sealed request `secrets` is None."""

    params: ObfuscationParams
    secrets: ObfuscationSecrets | None = field(repr=False)

    @classmethod
    def of(cls, api: Api, body: Body, prompt: AnyPrompt, tenant: str, session: RequestSession) -> "Hiding":
        refuse_biases(body.logit_bias)
        options = body.obfuscation or schema.ObfuscationOptions()
        if not isinstance(prompt, SealedPrompt):
            given = tuple(tuple(variant) for variant in options.substitutes or ())
            kept = session.name if session.keep else ""
            named = (tenant, kept, options.params, given, write_prompt(prompt))
            secret = api.index.secret(msgspec.msgpack.encode(named))
            names = tuple(name for name in (kept, body.cache_salt) if name)
            return cls(options.params, ObfuscationSecrets(secret, given, tuple(body.stop_strings), names))
        if options.substitutes is not None:
            message = "obfuscation: In a sealed request substitutes are sealed with the prompt, for its vault alone."
            raise InvalidRequest(message, param="obfuscation", hint="Use a Cloister client.")
        return cls(options.params, None)

    def hide(self, prompt: Prompt) -> Prompt:
        """The prompt with the secrets for its vault; the vault refuses token ids."""
        return prompt if isinstance(prompt, TokenPrompt) else msgspec.structs.replace(prompt, hidden=self.secrets)

    @property
    def winnow(self) -> Winnow | None:
        if self.secrets is None:
            return None
        prf = Prf(self.secrets.index_secret)
        return cache(lambda count: prf.order(REQUEST, count).authentic)


def answer_tokens(prompt_tokens: int | None, asked: int | None, default: int, max_context: int) -> int:
    """The number asked for, or the room in the context. Without a length (None) the vault applies this rule."""
    room = max_context - (1 if prompt_tokens is None else prompt_tokens)
    wanted = default if asked is None else asked
    if room < min(wanted, 1):
        message = f"The prompt has {prompt_tokens} tokens; prompt and answer together may have {max_context}."
        raise PromptTooLong(message, param="prompt", hint="Shorten the prompt.")
    return min(wanted, room)


def _params(api: Api, body: Body, level: Level, job: Job, default_tokens: int) -> SamplingParams:
    """Without seeds. A field that the request leaves out has the model's own default, or OpenAI's where it has none."""
    context, vocabulary = api.backend.ready.max_context, api.backend.ready.vocabulary
    prompt_tokens = len(job.prompt) if isinstance(job, OpenJob) else None
    refused = {each.param: None for each in level.refuses if each.param in ("top_p", "top_k", "min_p")}
    defaults = replace(api.tokenizer.generation, **refused)
    temperature = _first(body.temperature, defaults.temperature, 1.0)
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    if bias and max(bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias: Token ids must be below {vocabulary}.", param="logit_bias")
    stops = dict.fromkeys((*(() if body.ignore_eos else api.tokenizer.stop_tokens), *(body.stop_token_ids or ())))
    if stops and max(stops) >= vocabulary:
        raise InvalidRequest(f"stop_token_ids: Token ids must be below {vocabulary}.", param="stop_token_ids")
    limit = answer_tokens(prompt_tokens, body.token_limit, default_tokens, context)
    if body.min_tokens and body.min_tokens > limit:
        raise InvalidRequest(f"min_tokens: The answer may have {limit} tokens.", param="min_tokens")
    return SamplingParams(
        max_tokens=limit,
        min_tokens=body.min_tokens or 0,
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
        stop_tokens=tuple(stops),
        mpc_reveal=body.mpc_reveal or "token",
        stop_recitation=bool(body.stop_recitation),
    )


def _first(asked: T | None, default: T | None, otherwise: T) -> T:
    return asked if asked is not None else default if default is not None else otherwise


def choice_seed(seed: int | None, choice: int, *, drawn: bool) -> int | None:
    """The seed of one choice: the request's own for the first, derived from it for the others. Without one it is drawn
    here, or by the process that reads the prompt."""
    if seed is None:
        return secrets.randbits(63) if drawn else None
    if choice == 0:
        return seed & _SEED_MASK
    digest = hashlib.sha256(f"cloister choice {choice} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") & _SEED_MASK


def echo_of(prompt: AnyPrompt, job: OpenJob, tokenizer: Tokenizer) -> Echo:
    if isinstance(prompt, TextPrompt):
        return Echo(Marked.of(prompt.text, public=prompt.public, param="prompt").text, job.prompt)
    return Echo(tokenizer.decode(job.prompt), job.prompt)
