"""GET /v1/models and /v1/models/{id}: the one model this server has."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.errors import ModelNotFound
from cloister.gateway.api import Api, AskedBy, api_of
from cloister.gateway.openapi import replies
from cloister.gateway.protection import LevelInfo


class Model(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    protection: tuple[LevelInfo, ...]
    missing_layers: tuple[str, ...]
    object: Literal["model"] = "model"
    owned_by: str = "cloister"


class ModelList(msgspec.Struct):
    data: list[Model]
    object: Literal["list"] = "list"


router = APIRouter()


@router.get("/v1/models", **replies("ModelList", 401, 503))
async def list_models(request: Request, asked: AskedBy) -> Response:
    """The models that can be asked."""
    return _json(ModelList([_model(api_of(request))]))


@router.get("/v1/models/{model:path}", **replies("Model", 401, 404, 503))
async def show_model(request: Request, model: str, asked: AskedBy) -> Response:
    """One model."""
    api = api_of(request)
    if model != api.model:
        raise ModelNotFound("The model asked for is not served here.", hint=f"This server has {api.model!r}.")
    return _json(_model(api))


def _model(api: Api) -> Model:
    ready = api.backend.ready
    return Model(api.model, api.created, ready.max_context, api.levels.table, ready.missing_layers)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
