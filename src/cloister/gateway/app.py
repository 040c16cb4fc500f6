"""Puts the gateway's application together from parts that its caller hands in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from cloister import __version__
from cloister.backend.base import Backend, Carrier
from cloister.config import GatewaySettings
from cloister.errors import CloisterError
from cloister.gateway import answer, completions, routes, sealed
from cloister.gateway.api import Api, Levels
from cloister.gateway.completions import PromptReader
from cloister.gateway.errors import ErrorReply, handle_cloister_error, handle_http_error
from cloister.gateway.generation import WatchedAnswers
from cloister.gateway.guard import Guard
from cloister.gateway.metrics import Metrics
from cloister.gateway.openapi import describe
from cloister.gateway.schema import ChatRequest, CompletionRequest
from cloister.gateway.webpage import PageInfo, mount_page
from cloister.keys import KeyRing, load_keys
from cloister.prompts.tokenizer import Tokenizer


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

    app = FastAPI(
        title="Cloister",
        description="An OpenAI-compatible API for private serving of language models.",
        version=__version__,
        lifespan=lifespan,
        # FastAPI's own pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    levels = Levels(backend.ready.levels, backend.ready.why_not)
    app.state.prompts = prompts
    app.state.api = Api(backend, tokenizer, model, created, settings, keys, levels, WatchedAnswers(), metrics)
    app.add_middleware(Guard, metrics=metrics, local_only=settings.keys_file is None)
    app.add_exception_handler(CloisterError, handle_cloister_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    for part in (completions, routes):
        app.include_router(part.router)
    describe(
        app,
        model,
        levels.offered,
        sent=(
            *(ErrorReply, answer.ChatCompletion, answer.Completion, routes.Model, routes.ModelList),
            *(routes.RequestView, routes.Health, PageInfo),
        ),
        received=(ChatRequest, CompletionRequest),
    )
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
    mount_page(app)
    return app
