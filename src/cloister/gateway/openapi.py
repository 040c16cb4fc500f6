"""The part of /openapi.json that FastAPI cannot derive. The schemas come from the types that are read and written."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cloister.levels import LEVELS
from cloister.request_fields import LEVEL_HEADER, SESSION_HEADER, SESSION_PATTERN

_REF = "#/components/schemas/{}"
_ERRORS = {
    400: "The request is malformed, too long, or asks for what is not offered",
    401: "The API key is missing or unknown",
    403: "The API key does not allow this",
    404: "There is no such model, or no such request of the caller's",
    408: "The body did not arrive in time",
    409: "The channel key is not this node's, or the message was received before or too late",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests wait already; see Retry-After",
    500: "An unexpected error",
    503: "The model is not available now; see Retry-After",
    504: "The request ran longer than the server allows",
}


def json_of(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name)}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": _ERRORS[status], "content": json_of("ErrorReply")} for status in statuses}


def replies(name: str, *statuses: int) -> dict[str, Any]:
    return {"responses": {200: {"description": "OK", "content": json_of(name)}, **errors(*statuses)}}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    schema = {"type": "string", **schema}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def generation_docs(body: str, reply: str, *, streams: bool = True) -> dict[str, Any]:
    event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    content = json_of(reply) | ({"text/event-stream": {"schema": event}} if streams else {})
    level = {"description": "The level of protection the answer was made under", "schema": {"type": "string"}}
    named = {"description": "The session, where the caller named one", "schema": {"type": "string"}}
    parameters = [
        _header(LEVEL_HEADER, "The level of protection; like `protection` in the body", enum=list(LEVELS)),
        _header(SESSION_HEADER, "The conversation; like `session` in the body", pattern=SESSION_PATTERN),
    ]
    headers = {LEVEL_HEADER: level, SESSION_HEADER: named}
    return {
        "responses": {
            200: {"description": "OK", "content": content, "headers": headers},
            **errors(*_ERRORS.keys() - {403, 409}),
        },
        "openapi_extra": {"requestBody": {"required": True, "content": json_of(body)}, "parameters": parameters},
    }


Structs = Sequence[type[msgspec.Struct]]
Models = Sequence[type[BaseModel]]


def describe(app: FastAPI, model: str, levels: Sequence[str], sent: Structs, received: Models) -> None:

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, sent_schemas = msgspec.json.schema_components(sent, ref_template=_REF.format("{name}"))
            kinds: Any = [(kind, "validation") for kind in received]
            received_schemas = models_json_schema(kinds, ref_template=_REF.format("{model}"))[1]["$defs"]
            for kind in received:
                fields = received_schemas[kind.__name__]["properties"]
                fields["model"]["enum"], fields["protection"]["enum"] = [model], [*levels, None]
            schema.setdefault("components", {}).setdefault("schemas", {}).update(sent_schemas | received_schemas)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
