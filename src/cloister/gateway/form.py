"""An answer's form in /openapi.json: OpenAI's `response_format`, vLLM's `guided_…` and `structured_outputs`.
grammar.form reads them."""

from typing import Annotated, Any

from pydantic import WithJsonSchema

_NULL = {"type": "null"}
_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}
_SCHEMA = {"anyOf": [{"type": "object"}, {"type": "string", "contentMediaType": "application/json"}]}
_DESCRIBED = {"properties": {"name": {"type": "string"}, "schema": {"type": "object"}}, "required": ["schema"]}
_PLAIN = {"properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]}
_BY_SCHEMA = {
    "properties": {"type": {"const": "json_schema"}, "json_schema": {"type": "object", **_DESCRIBED}},
    "required": ["type", "json_schema"],
}
_KINDS = {"json": _SCHEMA, "regex": _TEXT, "choice": _TEXTS, "grammar": _TEXT, "json_object": {"const": True}}
_FORMS = [
    {"type": "object", "properties": {name: kind}, "required": [name], "additionalProperties": False}
    for name, kind in _KINDS.items()
]

ResponseFormat = Annotated[
    Any, WithJsonSchema({"anyOf": [*({"type": "object", **each} for each in (_PLAIN, _BY_SCHEMA)), _NULL]})
]
GuidedJson = Annotated[Any, WithJsonSchema({"anyOf": [*_SCHEMA["anyOf"], _NULL]})]
GuidedText = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _NULL]})]
GuidedChoice = Annotated[Any, WithJsonSchema({"anyOf": [_TEXTS, _NULL]})]
StructuredOutputs = Annotated[Any, WithJsonSchema({"anyOf": [*_FORMS, _NULL]})]
