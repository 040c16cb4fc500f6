"""Llama 3: {"name": …, "parameters": {…}}, several with semicolons between; <|python_tag|> may precede."""

from typing import ClassVar

from cloister.tools.base import Between, Call, calls_of, load_several


class Llama(Between):
    ends: ClassVar[dict[str, str]] = {"<|python_tag|>": ""}
    bare = "{"
    markers = ("<|python_tag|>",)

    def read(self, body: str) -> list[Call] | None:
        return calls_of(load_several(body, "; \n\r\t,"), "parameters", "arguments")
