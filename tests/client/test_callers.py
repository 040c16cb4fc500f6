"""Whose secrets the proxy remembers: a key's own, and none is forgotten."""

from __future__ import annotations

import json

import pytest

from cloister.client.proxy import Callers
from cloister.errors import ObfuscationRefused
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.variants import GivenSubstitutes

SAID = json.dumps({"messages": [{"role": "user", "content": "I am <redacted>Ann</redacted>."}]}).encode()
OTHER = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()


def callers(most: int = 3) -> Callers:
    return Callers(Obfuscation(GivenSubstitutes([["Bo"], ["Cy"]])), most)


def key(name: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {name}"), ("X-Other", "1")]


def say(memory: Callers, name: str, body: bytes = SAID) -> Obfuscation:
    with memory.asking(key(name)) as obfuscation:
        obfuscation.obfuscate("/v1/chat/completions", body)
    return obfuscation


def test_a_key_has_one_memory_and_no_other_key_has_it() -> None:
    memory = callers()
    assert say(memory, "a") is say(memory, "a") is not say(memory, "b")
    assert say(memory, "a").remembers
    with memory.asking([("api-key", "Bearer a")]) as elsewhere, memory.asking(()) as nobody, memory.asking(()) as again:
        assert not elsewhere.remembers and not nobody.remembers and nobody is not again


def test_who_has_secrets_is_not_forgotten_and_a_new_one_is_refused() -> None:
    memory = callers()
    first = say(memory, "a")
    for number in range(50):
        say(memory, f"without-{number}", OTHER)
    assert say(memory, "a") is first
    say(memory, "b")
    say(memory, "c")
    with pytest.raises(ObfuscationRefused, match="may forget none"):
        say(memory, "d")
    assert say(memory, "a") is first


def test_who_is_being_served_is_not_forgotten() -> None:
    memory = callers(most=1)
    with memory.asking(key("a")) as mine:
        with pytest.raises(ObfuscationRefused):
            say(memory, "b")
        with memory.asking(key("a")) as again:
            assert again is mine
    say(memory, "b")


def test_no_key_is_kept() -> None:
    memory = callers()
    say(memory, "sk-very-secret")
    assert "sk-very-secret" not in repr(memory.__dict__)
