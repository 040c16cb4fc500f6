"""Models that are here, listed."""

from __future__ import annotations

from pathlib import Path

from cloister.models.source import DEFAULT_NAME, find_model, known_models


def test_an_empty_cache_lists_the_default_as_not_converted(cache: Path) -> None:
    (only,) = known_models(verify=False)
    assert (only.name, only.default, only.state, only.path) == (DEFAULT_NAME, True, "not converted yet", None)


def test_a_converted_model_is_listed_and_verified(cache: Path, small_gguf: Path) -> None:
    folder = find_model(str(small_gguf))
    default, tiny = known_models(verify=False)
    assert default.default and not tiny.default
    assert (tiny.name, tiny.state, tiny.dtype, tiny.path) == ("tiny-llama", "ready", "bf16", folder.path)
    assert tiny.bytes > (folder.path / "model.safetensors").stat().st_size
    assert known_models(verify=True)[1].state == "verified"


def test_verify_finds_a_changed_byte(cache: Path, small_gguf: Path) -> None:
    weights = find_model(str(small_gguf)).path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 0xFF
    weights.write_bytes(content)
    assert known_models(verify=False)[1].state == "ready"
    assert known_models(verify=True)[1].state == "corrupt"
