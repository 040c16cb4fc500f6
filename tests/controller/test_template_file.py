"""Registered templates come from a file that the operator signed, and are read again when it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from cloister.config import ControllerSettings
from cloister.controller import template_file
from cloister.controller.sharing import Sharing
from cloister.controller.template_file import find_templates, sign_templates, tokenizer_digest
from cloister.errors import SetupError
from cloister.messages.controller_service import GeneratePrompt
from cloister.messages.types import SamplingParams
from cloister.prefix.public_pages import Template
from cloister.transparency.note import Algorithm, SigningKey

KEY, OTHER = (SigningKey.generate("templates.example", Algorithm.ED25519) for _ in range(2))
PROMPT = tuple(range(10))


def write(file: Path, digest: str, tokens: int, key: SigningKey = KEY) -> None:
    line = msgspec.json.encode(Template("one", ("all",), digest, PROMPT[:tokens])).decode()
    file.write_text(sign_templates(line, key))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def settings(file: Path, key: SigningKey | None = KEY) -> ControllerSettings:
    return ControllerSettings(templates=file, templates_key=None if key is None else str(key.verifier))


def span(sharing: Sharing) -> int:
    return sharing.label(GeneratePrompt(1, "a", PROMPT, SamplingParams()), 0).public_tokens


async def test_templates_are_read_again_and_a_bad_file_changes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_file, "EVERY_S", 0.01)
    file, digest = model / "templates", tokenizer_digest(model)
    write(file, digest, 4)
    made = Sharing(ControllerSettings(), lambda: 2, bytes(32))
    found = find_templates(settings(file), model)
    assert found is not None
    found.start(made)
    assert span(made) == 4
    write(file, digest, 8)
    async with asyncio.timeout(20):
        while span(made) != 8:
            await asyncio.sleep(0.01)
    write(file, digest, 10, OTHER)
    await asyncio.sleep(0.1)
    assert span(made) == 8, "another key registers nothing"
    await found.close()


async def test_templates_of_another_tokenizer_are_not_shared(model: Path) -> None:
    write(model / "templates", "0" * 64, 4)
    made = Sharing(ControllerSettings(), lambda: 2, bytes(32))
    found = find_templates(settings(model / "templates"), model)
    assert found is not None
    found.start(made)
    assert span(made) == 0
    await found.close()
    before = tokenizer_digest(model)
    (model / "chat_template.jinja").write_text("x")
    assert tokenizer_digest(model) != before, "the chat template decides tokens too"


@pytest.mark.parametrize("key", [None, OTHER])
def test_a_node_does_not_start_with_templates_that_its_operator_did_not_sign(
    model: Path, key: SigningKey | None
) -> None:
    write(model / "templates", tokenizer_digest(model), 4)
    with pytest.raises(SetupError):
        find_templates(settings(model / "templates", key), model)
