"""Serves the chat page's files and tells the page what it needs to know. The page itself lives in `page/`."""

from __future__ import annotations

from pathlib import Path

import msgspec
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from cloister.config import DEVELOPMENT_KEY
from cloister.gateway.api import api_of, json_response
from cloister.gateway.openapi import replies
from cloister.gateway.terms import LevelInfo

FOLDER = Path(__file__).parent / "page"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class PageInfo(msgspec.Struct):
    """What the page shows. `development_key` is null when a keys file is in use: the user then brings a key.

    `missing_layers` are the layers of the sandbox this machine's kernel lacks: vaults and service are sealed without.
    """

    model: str
    levels: tuple[LevelInfo, ...]
    default_level: str | None
    missing_layers: tuple[str, ...]
    development_key: str | None


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


router = APIRouter()


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def page() -> Response:
    """The chat page."""
    index = FOLDER / "index.html"
    if not index.is_file():
        raise HTTPException(404)
    return FileResponse(index, headers=HEADERS)


@router.get("/api/page", **replies("PageInfo"))
async def page_info(request: Request) -> Response:
    """What the chat page needs to know; needs no key."""
    api = api_of(request)
    key = DEVELOPMENT_KEY if api.settings.keys_file is None else None
    missing = api.backend.ready.missing_layers
    info = PageInfo(api.model, api.levels.table, api.levels.default, missing, key)
    return json_response(info, headers={"Cache-Control": "no-store"})


def mount_page(app: FastAPI) -> None:
    """Put the page and its files into the application."""
    app.include_router(router)
    app.mount("/static", _Files(directory=FOLDER, check_dir=False), name="static")
