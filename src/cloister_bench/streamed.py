"""A streamed answer's events, from a general HTTP client. What the server could not do ends a measurement clearly."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2

from cloister.errors import ServiceUnavailable

_EVENT = "data: {"


def events(http: httpx2.Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask, and give the events as they come. Not the server's words, which may hold the prompt's."""
    with http.stream("POST", path, json=body) as reply:
        if reply.status_code != httpx2.codes.OK:
            raise _failed(f"answered {reply.status_code}")
        yield from events_of(reply)


def events_of(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        if line.startswith(_EVENT):
            event = json.loads(line[len(_EVENT) - 1 :])
            if "error" in event:
                raise _failed("ended an answer with an error")
            yield event


def _failed(what: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"The measured server {what}.", hint="See its log; is something else killing it?")
