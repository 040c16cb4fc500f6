"""A conversation with an OpenAI-compatible server: sealed to a verified node, or over plain HTTP on request."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self
from urllib.parse import quote

import httpx2

from cloister.addresses import HttpAddress
from cloister.client.cloud_transport import CloudAccess, CloudTransport
from cloister.client.sealed_transport import AsyncSealedTransport, BlockingTransport
from cloister.client.verification import VerifiedNode
from cloister.errors import CloisterError, InvalidRequest, ServiceUnavailable, SetupError, StartingUp, Unauthorized
from cloister.levels import OPEN
from cloister.request_fields import LEVEL_HEADER, SESSION_HEADER

NOT_OPENAI_HINT = "Give the address of an OpenAI-compatible server, such as one started with `cloister serve`."
SOON_S, LATEST_S, PATIENCE_S = 1, 15, 600
"""Shortest and longest pause, and total time, of asking a server again while it starts."""


class Conversation:
    def __init__(
        self,
        address: HttpAddress,
        api_key: str,
        *,
        node: VerifiedNode | CloudAccess | None = None,
        model: str | None = None,
        system: str | None = None,
        choices: Mapping[str, Any],
    ) -> None:
        self._address = address
        self._protection = choices.get("protection")
        self._session, self._session_kept = secrets.token_hex(16), False
        kind = CloudTransport if isinstance(node, CloudAccess) else AsyncSealedTransport
        transport = None if node is None else BlockingTransport(kind(node))  # type: ignore[arg-type]
        self._anonymous = isinstance(node, CloudAccess)  # a session would link requests
        key, timeout = {"Authorization": f"Bearer {api_key}"}, httpx2.Timeout(600.0, connect=5.0)
        self._client = httpx2.Client(transport=transport, headers=key, timeout=timeout, trust_env=False)
        self._model = model
        self._choices = choices
        self._system: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._system)
        self.on_progress: Callable[[str], None] = lambda progress: None
        """Called with the progress that the server reports."""
        self.on_wait: Callable[[str], None] = lambda reason: None
        self._waited = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.forget()
        finally:
            self._client.close()

    def forget(self) -> None:
        with suppress(httpx2.TransportError, CloisterError):  # a server that stopped or restarted has forgotten, too
            if self._session_kept:
                self._client.delete(self._address.url(f"/v1/sessions/{quote(self._session, safe='')}"), timeout=5.0)
        self._messages, self._session, self._session_kept = list(self._system), secrets.token_hex(16), False

    @property
    def model(self) -> str:
        if self._model is None:
            listing = self._send("GET", "/v1/models", None)
            try:
                self._model = str(listing["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise self._not_openai() from None
        return self._model

    def ask(self, prompt: str) -> Iterator[str]:
        """Stream the answer's text. It joins the conversation when it is whole."""
        body = self._body(prompt) | {"stream": True}
        named = {} if self._anonymous else {SESSION_HEADER: self._session}
        said: list[str] = []
        with self._answered("POST", "/v1/chat/completions", body, named) as response:
            self._session_kept |= SESSION_HEADER in response.headers
            for line in response.iter_lines():
                if line.startswith(": "):
                    self.on_progress(line[2:])
                elif line.startswith("data:") and (piece := self._text_of(line[5:].strip())):
                    said.append(piece)
                    yield piece
        self._remember(prompt, "".join(said))

    def ask_whole(self, prompt: str) -> dict[str, Any]:
        answer = self._send("POST", "/v1/chat/completions", self._body(prompt))
        try:
            choice = answer["choices"][0]
            content = str(choice["message"]["content"] or "")
            summary = {"model": answer["model"], "content": content, "finish_reason": choice["finish_reason"]}
        except (KeyError, IndexError, TypeError):
            raise self._not_openai() from None
        self._remember(prompt, content)
        return {**summary, "usage": answer.get("usage")}

    def _body(self, prompt: str) -> dict[str, Any]:
        messages = [*self._messages, {"role": "user", "content": prompt}]
        return {"model": self.model, "messages": messages, **self._choices}

    def _remember(self, prompt: str, answer: str) -> None:
        self._messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    def _send(self, method: str, endpoint: str, body: dict[str, Any] | None) -> dict[str, Any]:
        with self._answered(method, endpoint, body) as response:
            response.read()
        with suppress(ValueError):
            if isinstance(document := response.json(), dict):
                return document
        raise self._not_openai()

    @contextmanager
    def _answered(
        self, method: str, endpoint: str, body: dict[str, Any] | None, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx2.Response]:
        """The answer of a server that serves this; one that starts is asked again."""
        self._waited = 0.0
        try:
            while True:
                url = self._address.url(endpoint)
                with self._client.stream(method, url, json=body, headers=headers) as response:
                    if response.status_code == 200:
                        if body is not None:
                            self._check_level(response)
                        yield response
                        return
                    response.read()
                    if not self._waits(response):
                        raise self._refusal(response)
        except httpx2.TransportError as wrong:
            raise self._unreachable(wrong) from None

    def _waits(self, response: httpx2.Response) -> bool:
        """Whether the server is starting something that the request needs. If so, this has waited: ask again."""
        try:
            error = response.json()["error"] if response.status_code == 503 else {}
            if error.get("code") != StartingUp.code or self._waited >= PATIENCE_S:
                return False
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        if not self._waited:
            self.on_wait(_one_line(error.get("message")))
        said = response.headers.get("retry-after", "")
        seconds = min(max(int(said) if said.isdecimal() and len(said) < 9 else SOON_S, SOON_S), LATEST_S)
        time.sleep(seconds)
        self._waited += seconds
        return True

    def _check_level(self, response: httpx2.Response) -> None:
        """A server that does not confirm the level has ignored it."""
        if self._protection in (None, OPEN) or response.headers.get(LEVEL_HEADER) == self._protection:
            return
        hint = "Assume that the provider saw what was sent; use a Cloister server that offers the level."
        raise SetupError(f"{self._address} did not serve at the level of protection asked for.", hint=hint)

    def _text_of(self, payload: str) -> str:
        if payload == "[DONE]":
            return ""
        try:
            event = json.loads(payload)
            if event.get("error"):
                raise ServiceUnavailable(f"The answer broke off: {_one_line(event['error'].get('message'))}")
            return str(event["choices"][0]["delta"].get("content") or "") if event.get("choices") else ""
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._not_openai() from None

    def _refusal(self, response: httpx2.Response) -> CloisterError:
        if response.status_code in (401, 403):
            return Unauthorized(
                f"{self._address} refuses the API key.", hint="Set CLOISTER_API_KEY or give --api-key-file."
            )
        try:
            message = _one_line(response.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return self._not_openai(f"HTTP {response.status_code}")
        if response.status_code == 429 or response.status_code >= 500:
            return ServiceUnavailable(message, hint="Try again in a moment.")
        return InvalidRequest(message)

    def _unreachable(self, wrong: httpx2.TransportError) -> CloisterError:
        if isinstance(wrong, httpx2.ConnectError | httpx2.ConnectTimeout):
            hint = "Start a server with `cloister serve`, or check --url."
            return ServiceUnavailable(f"Nothing answers at {self._address}.", hint=hint)
        if isinstance(wrong, httpx2.RemoteProtocolError):
            return self._not_openai("no proper HTTP response")
        return ServiceUnavailable(f"The connection to {self._address} failed ({type(wrong).__name__}).")

    def _not_openai(self, detail: str = "unexpected JSON") -> SetupError:
        return SetupError(f"{self._address} does not answer as OpenAI's API does ({detail}).", hint=NOT_OPENAI_HINT)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
