"""Lists of words, names and sentences, as data. Any pairing that names a real person is chance."""

import json
from importlib.resources import files
from typing import Any


def read_words(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files(__package__) / f"{name}.json").read_text(encoding="utf-8"))
    return found
