"""Serves the chat page's files (`page/`) and the facts that the page shows."""

from __future__ import annotations

from pathlib import Path

import msgspec
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cloister.config import DEVELOPMENT_KEY
from cloister.gateway.api import LevelInfo, api_of, json_response
from cloister.gateway.openapi import replies

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
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
    """What the page shows. `development_key` is null when a keys file is in use: the user then brings a key."""

    model: str
    levels: tuple[LevelInfo, ...]
    default_level: str | None
    missing_layers: tuple[str, ...]
    development_key: str | None


router = APIRouter()


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

    async def file(name: str = "index.html") -> Response:
        if name not in files:
            raise HTTPException(404)
        content, kind = files[name]
        return Response(content, media_type=kind, headers=HEADERS)

    async def index() -> Response:
        return await file()

    app.add_api_route("/", index, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/static/{name}", file, methods=["GET", "HEAD"], include_in_schema=False)
