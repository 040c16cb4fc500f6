"""Quantised folders, refused by their method's name: read without scales, such weights answer nonsense. GGUF files are
dequantised when they are converted (gguf_file.py)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloister.errors import ModelUnsupported

KEYS = ("quantization_config", "compression_config", "quantization")  # in config.json and FILES, at any depth
FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
NAMES = ("quant_method", "quant_algo", "format", "fmt", "load_in_4bit", "load_in_8bit")
HINT = (
    "Serve the model's unquantised folder (bf16, fp16 or fp32) or a GGUF file of it. "
    "--weights int8 halves the memory of either."
)


def refuse_quantised(folder: Path, config: dict[str, Any]) -> None:
    for description in _descriptions(config):
        raise _refused(folder, _method(description) or "a method that it does not name")
    for name, method in FILES.items():
        if (folder / name).is_file():
            raise _refused(folder, _method_in(folder / name) or method)


def _descriptions(config: Any) -> Iterator[Any]:
    for key, value in config.items() if isinstance(config, dict) else ():
        if key in KEYS and value:
            yield value
        yield from _descriptions(value)


def _method(description: Any) -> str:
    if not isinstance(description, dict):
        return str(description)[:40]
    said = {name: description[name] for name in NAMES if description.get(name)}
    return " ".join(name if value is True else str(value)[:40] for name, value in said.items())


def _method_in(file: Path) -> str:
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        return ""
    return next(filter(None, map(_method, [*_descriptions(found), found])), "")


def _refused(folder: Path, method: str) -> ModelUnsupported:
    return ModelUnsupported(f"The weights in {folder} are quantised ({method}), which is not served yet.", hint=HINT)
