"""The endpoints that generate nothing: models, sessions, what the provider sees of a request, health, metrics."""

import asyncio
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cloister.errors import CloisterError, ModelNotFound, NotPermitted, ServiceUnavailable
from cloister.gateway.api import Api, Call, Credentials, LevelInfo, api_of, caller_of, check_session, json_response
from cloister.gateway.openapi import errors, replies
from cloister.messages.controller_detector import Category, Label
from cloister.messages.controller_frontend import View
from cloister.messages.generation import Stats
from cloister.prompts.tokenizer import Tokenizer

router = APIRouter()
_SERVICE_S = 5.0  # how long the service has to answer
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class EmbeddingInfo(msgspec.Struct):
    """`pooling`: of an input's tokens the last one's state."""

    dimensions: int
    pooling: Literal["last"] = "last"


class Model(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    protection: tuple[LevelInfo, ...]
    missing_layers: tuple[str, ...]
    embeddings: EmbeddingInfo | None
    object: Literal["model"] = "model"
    owned_by: str = "cloister"


class ModelList(msgspec.Struct):
    data: list[Model]
    object: Literal["list"] = "list"


@router.get("/v1/models", **replies("ModelList", 400, 401, 503))
async def list_models(request: Request, call: Call) -> Response:
    """The models that can be asked."""
    return json_response(ModelList([_model(api_of(request))]))


@router.get("/v1/models/{model:path}", **replies("Model", 400, 401, 404, 503))
async def show_model(request: Request, model: str, call: Call) -> Response:
    """One model."""
    api = api_of(request)
    if model != api.model:
        raise ModelNotFound("The model asked for is not served here.", hint=f"This server has {api.model!r}.")
    return json_response(_model(api))


def _model(api: Api) -> Model:
    ready = api.backend.ready
    embeds = EmbeddingInfo(ready.width) if ready.width else None
    return Model(api.model, api.created, ready.max_context, api.levels.table, ready.missing_layers, embeds)


@router.delete(
    "/v1/sessions/{session:path}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "The session does not exist now"}, **errors(400, 401, 503)},
)
async def end_session(request: Request, session: str, call: Call, private: bool = False) -> Response:
    """End one of the caller's sessions, and its vault with all it kept. The answer is the same if there was none.

    With `private=true` the service, too, forgets what it kept of the caller's prompts for reuse, at every level.
    """
    check_session(session)
    caller = call.caller
    await api_of(request).backend.end_session(caller.tenant, session, caller.trust_group, private=private)
    return Response(status_code=204)


class SeenTokens(msgspec.Struct):
    """Tokens the provider's process holds, and what they spell."""

    tokens: tuple[int, ...]
    text: str


class LabelledBlock(msgspec.Struct):
    """Tier of detection and category of a block of the prompt. Tier 0: no tier has read it yet, so it is private."""

    text: str
    label: str
    tier: int
    category: str | None


class ChoiceView(msgspec.Struct):
    """What the service's process has of a choice. A row: one layer's query or answer. `found_shared`: of others."""

    index: int
    known: bool
    prompt: SeenTokens
    output: SeenTokens
    streams: list[SeenTokens]  # at `obfuscated`, in place of the output: answers of which one is real
    asked_rows: int
    asked_bytes: int
    answered_rows: int
    answered_bytes: int
    layers: int
    found: int
    found_shared: int
    blocks: list[LabelledBlock]


class RequestView(msgspec.Struct):
    id: str
    protection: str
    running: bool
    choices: list[ChoiceView]
    object: Literal["request.view"] = "request.view"


@router.get("/v1/requests/{request_id}/view", **replies("RequestView", 400, 401, 404, 503))
async def view_request(request: Request, request_id: str, call: Call) -> Response:
    """What the provider sees of one of the caller's requests, while it runs and for a minute after."""
    api = api_of(request)
    answer = api.watched.find(request_id, call.caller.tenant)
    if answer is None:
        raise HTTPException(404)
    try:
        async with asyncio.timeout(_SERVICE_S):
            views = [(index, await api.backend.view(number)) for index, number in sorted(answer.requests.items())]
    except TimeoutError:
        raise ServiceUnavailable("The service does not answer.") from None
    choices = [_choice(index, view, api.tokenizer, api.backend.ready.block_tokens) for index, view in views]
    view = RequestView(request_id, answer.level, answer.ended is None, choices)
    return json_response(view, headers={"Cache-Control": "no-store"})


def _choice(index: int, view: View, tokenizer: Tokenizer, block_tokens: int) -> ChoiceView:
    seen = msgspec.structs.asdict(view)
    codes = [seen.pop(name) for name in ("labels", "tiers", "categories")]
    del seen["request_id"]
    for name in ("prompt", "output"):
        seen[name] = SeenTokens(seen[name], tokenizer.decode(seen[name]))
    seen["streams"] = [SeenTokens(tokens, tokenizer.decode(tokens)) for tokens in view.streams]
    blocks = []
    for number, (label, tier, category) in enumerate(zip(*codes, strict=True)):
        tokens = view.prompt[number * block_tokens : (number + 1) * block_tokens]
        why = None if category == Category.NONE else Category(category).name.lower()
        blocks.append(LabelledBlock(tokenizer.decode(tokens), Label(label).name.lower(), tier, why))
    return ChoiceView(index, blocks=blocks, **seen)


class Health(msgspec.Struct):
    status: Literal["ok"] = "ok"


@router.get("/ready", **replies("Health", 503))
@router.get("/health", **replies("Health", 503))
async def health(request: Request) -> Response:
    """Whether a request that names no level of protection would be served now; needs no key.

    At `/ready` the answer is 503, too, once the node is about to stop and takes no new requests.
    """
    api = api_of(request)
    stats = await _stats(api)
    if stats is None or not stats.up:
        raise ServiceUnavailable("The service does not answer.")
    if api.levels.default is not None and api.levels.default not in stats.levels:
        message = f"The default level of protection, {api.levels.default!r}, cannot be served now."
        raise ServiceUnavailable(message, hint="Its operator finds the reason in the server's output.")
    return json_response(Health())


@router.get("/metrics", responses={200: {"description": "OK", "content": {"text/plain": {}}}, **errors(401, 403)})
async def metrics(request: Request, credentials: Credentials) -> Response:
    """Totals for Prometheus. They need an operator's key, since they are about all tenants."""
    if not caller_of(request, credentials).operator:
        hint = "`cloister key new NAME --operator` makes one."
        raise NotPermitted("This API key is a tenant's; the server's totals need an operator's.", hint=hint)
    api = api_of(request)
    return Response(await api.metrics.exposition(lambda: _stats(api)), media_type=_TEXT)


async def _stats(api: Api) -> Stats | None:
    try:
        async with asyncio.timeout(_SERVICE_S):
            return await api.backend.stats()
    except (CloisterError, TimeoutError):
        return None
