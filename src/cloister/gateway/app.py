"""The gateway's application: the API, the chat page (`page/`) and, where there is a carrier, the secure channel."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from cloister import __version__
from cloister.backend.base import Backend, Carrier
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.errors import CloisterError
from cloister.gateway import answer, completions, embeddings, responses, routes, sealed
from cloister.gateway.api import Api, LevelInfo, Levels, api_of, json_response
from cloister.gateway.completion_reply import Completion
from cloister.gateway.drain import Drain
from cloister.gateway.errors import ErrorReply, handle_cloister_error, handle_http_error
from cloister.gateway.generation import WatchedAnswers
from cloister.gateway.guard import Guard
from cloister.gateway.metrics import Metrics
from cloister.gateway.openapi import describe, replies
from cloister.gateway.prompt_reader import PromptReader
from cloister.gateway.responses_reply import ResponseObject
from cloister.gateway.schema import ChatRequest, CompletionRequest
from cloister.keys import KeyRing, load_keys
from cloister.prompts.tokenizer import Tokenizer
from cloister.request_fields import LEVEL_HEADER, SEQUENCES_HEADER, SESSION_HEADER, SUBSTITUTES_HEADER

FOLDER = Path(__file__).parent / "page"
KINDS = {
    **{".html": "text/html", ".js": "text/javascript", ".css": "text/css"},
    **{".svg": "image/svg+xml", ".json": "application/json"},
}
_OWN = "default-src 'self'; img-src 'self' data:; object-src 'none'"
HEADERS = {
    "Content-Security-Policy": f"{_OWN}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class PageInfo(msgspec.Struct):
    """What the page shows. `development_key` is null when a keys file is in use: the user then brings a key."""

    model: str
    levels: tuple[LevelInfo, ...]
    default_level: str | None
    missing_layers: tuple[str, ...]
    development_key: str | None


router = APIRouter()
TOLD_HEADERS = [LEVEL_HEADER, SESSION_HEADER, SEQUENCES_HEADER, SUBSTITUTES_HEADER, "X-Request-Id", "Retry-After"]
BARE: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}  # FastAPI's pages use a CDN


@router.get("/api/page", **replies("PageInfo"))
async def page_info(request: Request) -> Response:
    """Facts for the chat page; needs no key."""
    api = api_of(request)
    key = DEVELOPMENT_KEY if api.settings.keys_file is None else None
    missing = api.backend.ready.missing_layers
    info = PageInfo(api.model, api.levels.table, api.levels.default, missing, key)
    return json_response(info, headers={"Cache-Control": "no-store"})


def mount_page(app: FastAPI) -> None:
    """The files are read now: later the gateway reads no file."""
    app.include_router(router)
    files = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in sorted(FOLDER.glob("*.*"))}

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404)
        content, kind = files[name]
        return Response(content, media_type=kind, headers=HEADERS)

    for path in ("/", "/static/{name}"):
        app.add_api_route(path, file, methods=["GET", "HEAD"], include_in_schema=False)


def create_api(
    backend: Backend, tokenizer: Tokenizer, model: str, settings: GatewaySettings, created: int, keys: KeyRing
) -> FastAPI:
    """The backend must be ready; its owner closes it."""
    metrics = Metrics(coarse=settings.keys_file is not None)
    prompts = PromptReader(tokenizer, backend.ready)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        prompts.close()

    text = "An OpenAI-compatible API for private serving of language models."
    app = FastAPI(title="Cloister", description=text, version=__version__, lifespan=lifespan, **BARE)
    levels = Levels(backend.ready.levels, backend.ready.why_not, backend.ready.verify)
    app.state.prompts = prompts
    parsing = replace(tokenizer.parsing, named=backend.ready.tool_parser)
    app.state.api = Api(backend, tokenizer, model, created, settings, keys, levels, WatchedAnswers(), metrics, parsing)
    drain = app.state.drain = Drain()
    app.add_middleware(Guard, metrics=metrics, drain=drain, local_only=settings.keys_file is None)
    app.add_exception_handler(CloisterError, handle_cloister_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    for part in (completions, embeddings, responses, routes):
        app.include_router(part.router)
    shown = (routes.Model, routes.ModelList, routes.RequestView, routes.Health, PageInfo)
    sent = (ErrorReply, answer.ChatCompletion, Completion, ResponseObject, embeddings.EmbeddingList, *shown)
    received = (ChatRequest, CompletionRequest, responses.ResponsesRequest, embeddings.EmbeddingRequest)
    describe(app, model, levels.offered, sent, received)
    return app


def create_app(
    backend: Backend,
    tokenizer: Tokenizer,
    model: str,
    settings: GatewaySettings,
    created: int,
    carrier: Carrier | None = None,
    keys: KeyRing | None = None,
) -> FastAPI:
    app = create_api(backend, tokenizer, model, settings, created, load_keys(settings) if keys is None else keys)
    if carrier is not None:
        app.state.carrier = carrier
        app.include_router(sealed.router)
    if settings.allow_origin is not None:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origin.split(","),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=TOLD_HEADERS,
        )
    mount_page(app)
    return app
