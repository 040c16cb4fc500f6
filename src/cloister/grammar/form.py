"""The fields of a request that say what its answer must look like, as one JSON text, the form. Clients that seal a
request make it, too. No error holds a word of it."""

import json
from collections.abc import Mapping
from typing import Any

from cloister.errors import FormRefused

FIELDS = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
MOST_CHARACTERS = 64 * 1024
_KINDS = ("json_object", "json", "regex", "choice", "grammar")  # of `structured_outputs`, vLLM's newer field


def form_of(fields: Mapping[str, Any]) -> str:
    """Empty if nothing is asked for."""
    forms = {name: form for name in FIELDS if (form := _form(name, fields.get(name)))}
    if not forms:
        return ""
    if len(forms) > 1:
        param = [*forms][-1]
        raise FormRefused(f"{' and '.join(forms)}: An answer has one form.", param=param, hint="Leave one out.")
    [(name, form)] = forms.items()
    try:
        text = json.dumps(form, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (ValueError, RecursionError):
        raise FormRefused(f"{name}: This is not a form that JSON can hold.", param=name) from None
    if len(text) > MOST_CHARACTERS:
        raise FormRefused(f"{name}: A form may have {MOST_CHARACTERS} characters.", param=name, hint="Shorten it.")
    return text


def _form(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if name == "response_format":
        return _of_response_format(value)
    if name == "structured_outputs":
        return _of_structured_outputs(value)
    return _of_kind(name, name.removeprefix("guided_"), value)


def _of_response_format(value: Any) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    described = value.get("json_schema") if kind == "json_schema" else None
    if isinstance(described, dict) and isinstance(schema := described.get("schema"), dict):
        return {"json_schema": schema}
    hint = '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}, "json_object" or "text".'
    raise FormRefused("response_format: This is no format of an answer.", param="response_format", hint=hint)


def _of_structured_outputs(value: Any) -> dict[str, Any]:
    given = {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else {}
    if len(given) != 1 or not set(given) <= set(_KINDS):
        hint = f"Give one of {', '.join(_KINDS)}."
        raise FormRefused("structured_outputs: This is no form.", param="structured_outputs", hint=hint)
    [(kind, one)] = given.items()
    return _of_kind("structured_outputs", kind, one)


def _of_kind(name: str, kind: str, value: Any) -> dict[str, Any]:
    if kind == "json":
        schema = _read(value) if isinstance(value, str) else value
        if isinstance(schema, dict):
            return {"json_schema": schema}
        wanted = "a JSON schema"
    elif kind == "json_object":
        if value is True:
            return {kind: True}
        wanted = "true"
    elif kind == "choice":
        if isinstance(value, list) and value and all(isinstance(one, str) and one for one in value):
            return {kind: value}
        wanted = "a list of texts"
    else:
        if isinstance(value, str) and value:
            return {kind: value}
        wanted = "a text"
    raise FormRefused(f"{name}: This must be {wanted}.", param=name)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
