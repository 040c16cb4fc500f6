"""Requests that cannot be answered from a cache: as many tokens as asked for, different each time. No network here."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import msgspec

Endpoint = Literal["completions", "chat"]

# One token each in the common vocabularies, with the blank before it; only `chat` needs words.
# fmt: off
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "government", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word",
    "business", "issue", "side", "kind", "head", "house", "service", "friend",
)
# fmt: on


class PromptSource:
    """Draws prompts. The same seed gives the same prompts, whatever the order in which users ask."""

    def __init__(self, endpoint: Endpoint, length: int, seed: int, token_ids: tuple[int, int]) -> None:
        self._endpoint = endpoint
        self._length = length
        self._seed = seed
        self._token_ids = token_ids

    def prompt_fields(self, *names: object) -> dict[str, Any]:
        """The body's part that holds the prompt: token ids (the count is exact), or a message of as many words."""
        random = Random(":".join(map(str, (self._seed, *names))))
        if self._endpoint == "completions":
            low, high = self._token_ids
            return {"prompt": [random.randrange(low, high) for _ in range(self._length)]}
        return {"messages": [{"role": "user", "content": " ".join(random.choices(WORDS, k=self._length))}]}


def request_body(
    model: str,
    output_tokens: int,
    prompt_fields: dict[str, Any],
    protection: str | None = None,
    session: str | None = None,
) -> bytes:
    """A streaming request for exactly `output_tokens` tokens (`ignore_eos` is understood by vLLM, SGLang and us).

    What is left out is not said, so that a server of another kind is not asked what it does not know.
    """
    return msgspec.json.encode(
        {
            "model": model,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **prompt_fields,
            **({} if protection is None else {"protection": protection}),
            **({} if session is None else {"session": session}),
        }
    )
