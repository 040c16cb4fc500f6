"""A node without a model for audits: good by itself, with any number of flaws by name."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cloister.audit.target import random_words
from tests.attest.statements import SETTINGS
from tests.client.fake_node import KEY, MODEL, FakeNode
from tests.client.http_server import Received, Reply, reply

OTHER_KEY = "sk-of-another-tenant"
LEVELS = ("open", "partitioned")
FIELDS = {"model", "prompt", "max_tokens", "temperature", "protection", "logprobs", "n", "stop", "messages"}
_TYPES: dict[str, Any] = {"temperature": (int, float), "prompt": str, "max_tokens": int, "model": str}


@dataclass
class AuditedNode(FakeNode):
    flaws: frozenset[str] = frozenset()
    running: int = 0
    last: str = ""
    found: set[tuple[str, str]] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)

    async def handle(self, received: Received) -> Reply:
        if received.path.endswith("/v1/sealed"):
            return await super().handle(received)
        if received.path.endswith("/v1/evidence"):
            return await self._prove(received)
        key = received.headers.get("authorization", "").removeprefix("Bearer ")
        if f"answers {received.method} {received.path}" in self.flaws:
            return _json(200, {})
        if received.path == "/metrics" and received.method == "GET":
            return _json(200 if key == KEY or (key == OTHER_KEY and "totals" in self.flaws) else 403, {})
        if received.path.startswith("/v1/requests/"):
            owner = self.owners.get(received.path.split("/")[3])
            return _json(200 if owner and (key == owner or (key and "views" in self.flaws)) else 404, {})
        if received.path == "/v1/models" and received.method == "GET":
            table = [{"id": level, "enabled": True} for level in LEVELS]
            return _json(200, {"data": [{"id": MODEL, "protection": table}]})
        if received.path != "/v1/completions" or received.method != "POST":
            return _json(404, {})
        if key.startswith("PrivateToken") and "tokens" in self.flaws:
            key = KEY
        if key not in (KEY, OTHER_KEY) and "keys" not in self.flaws:
            return _json(401, {})
        return await self._complete(received, key)

    async def _prove(self, received: Received) -> Reply:
        asked = json.loads(received.body)
        nonce = bytes.fromhex(asked.get("nonce", ""))
        if len(nonce) != 32:
            return _json(200 if "any nonce" in self.flaws else 400, {})
        if "cloud" in self.flaws:
            self.settings = replace(self.settings, cloud="c" * 64)
        if "beat" in self.flaws:
            self.settings = replace(self.settings, beat_ms=50)
        if "vault host" in self.flaws:
            self.settings = replace(self.settings, vault_hosts=("elsewhere.example:7000",))
        if "settings" in self.flaws:
            self.started += 1
        return await super().handle(
            Received("POST", received.path, received.headers, json.dumps({"since": 0} | asked).encode(), b"")
        )

    async def _complete(self, received: Received, key: str) -> Reply:
        asked = json.loads(received.body)
        wrong = self._wrong(asked, received.headers)
        if wrong:
            words = received.body.decode() if "echo" in self.flaws else "The request is malformed."
            return _json(400, {"error": {"message": words}})
        prompt = asked["prompt"]
        self.running += 1
        await asyncio.sleep(0.05)
        if len(prompt) > 500:
            await self._read(prompt)
        seen = [prompt, self.running if "neighbours" in self.flaws else 0, self.last if "pages" in self.flaws else ""]
        self.running -= 1
        cached = self._cached(prompt, key)
        self.found.add((key, prompt))
        self.last = prompt
        name = hashlib.sha256(f"{key}{prompt}{random_words(1)}".encode()).hexdigest()
        self.owners[name] = key
        logprobs = hashlib.sha256(json.dumps(seen).encode()).hexdigest()
        usage = {"prompt_tokens_details": {"cached_tokens": cached}}
        return _json(200, {"id": name, "choices": [{"text": "so it is", "logprobs": logprobs}], "usage": usage})

    async def _read(self, prompt: str) -> None:
        """The time that a text takes, unless it is found computed."""
        if "timing" not in self.flaws or prompt not in {known for _, known in self.found}:
            await asyncio.sleep(0.5)

    def _cached(self, prompt: str, key: str) -> int:
        known = {text for _, text in self.found} if "usage" in self.flaws else set()
        return 64 if "no cache" not in self.flaws and ((key, prompt) in self.found or prompt in known) else 0

    def _wrong(self, asked: Any, headers: dict[str, str]) -> bool:
        if not isinstance(asked, dict):
            return True
        unknown = {name for name in asked if name not in FIELDS and f"field {name}" not in self.flaws}
        header = any(name.startswith("x-cloister-") for name in headers) and "headers" not in self.flaws
        level = asked.get("protection", "open") not in LEVELS and "levels" not in self.flaws
        types = any(name in asked and not isinstance(asked[name], kind) for name, kind in _TYPES.items())
        many = asked.get("n", 1) > 128 or len(asked.get("stop", ())) > 16 or asked.get("max_tokens", 1) < 0
        return bool(unknown or header or level or types or many or "prompt" not in asked)


def _json(status: int, document: object) -> Reply:
    return reply(status, json.dumps(document).encode())


__all__ = ["KEY", "LEVELS", "OTHER_KEY", "SETTINGS", "AuditedNode"]
