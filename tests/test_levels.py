"""The table of levels: what it says agrees with what is built, refused, shown and documented."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from cloister.config import ControllerSettings
from cloister.controller.external_level import PACKAGES, load_level
from cloister.controller.relay import Relay
from cloister.errors import InvalidRequest
from cloister.levels import (
    LEVELS,
    Decodes,
    LevelName,
    Needs,
    PrivateLevel,
    Reader,
    ReadLevel,
    VaultLevel,
    default_of,
    served,
)
from cloister.messages.types import SamplingParams
from tests.controller.fakes import SERVING, nothing_is_sealed
from tests.sources import tree_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cloister"


def test_the_names_are_those_of_the_table() -> None:
    assert tuple(LEVELS) == get_args(LevelName)
    built = LEVELS
    assert set(built) == set(get_args(LevelName))
    assert {name for name, level in built.items() if level.uses_vault} == set(get_args(PrivateLevel))
    assert {name for name, level in built.items() if level.reader is Reader.API} == set(get_args(ReadLevel))
    assert {name for name, level in built.items() if level.reader is Reader.VAULT} == set(get_args(VaultLevel))


async def test_every_built_level_has_a_route_and_no_other_has() -> None:
    relay = Relay(ControllerSettings(), 1, nothing_is_sealed, SERVING)
    assert set(relay.routes) == set(get_args(LevelName)) - PACKAGES.keys()
    for name in PACKAGES:
        relay.add_level(load_level(name))
    assert set(relay.routes) == set(get_args(LevelName))
    assert all(route.level is LEVELS[name] for name, route in relay.routes.items())


@pytest.mark.parametrize(
    ("needs", "offered"),
    [
        ((), ("open", "shared", "isolated")),
        ((Needs.LINKS,), ("open", "shared", "partitioned", "obfuscated", "isolated")),
        ((Needs.PARTIES,), ("open", "shared", "isolated", "mpc")),
        ((Needs.LINKS, Needs.PARTIES), ("open", "shared", "partitioned", "obfuscated", "isolated", "mpc")),
    ],
)
def test_what_a_server_offers_follows_from_what_it_has(needs: tuple[Needs, ...], offered: tuple[str, ...]) -> None:
    assert served(*needs) == offered


def test_the_default_is_never_a_level_that_shows_the_prompt() -> None:
    assert default_of(served(Needs.LINKS, Needs.PARTIES)) == "partitioned"
    assert default_of(("open", "isolated", "mpc")) == "isolated"
    assert default_of(("open", "mpc")) == "mpc"
    assert default_of(("open",)) is None
    assert all(level.uses_vault for level in LEVELS.values() if level.default_rank is not None)


WISHES = {
    "max_tokens": SamplingParams(max_tokens=0),
    "repetition_penalty": SamplingParams(repetition_penalty=1.5),
    "prompt_logprobs": SamplingParams(prompt_logprobs=1),
    "top_p": SamplingParams(top_p=0.5),
    "top_k": SamplingParams(top_k=3),
    "min_p": SamplingParams(min_p=0.1),
    "logprobs": SamplingParams(logprobs=0),
    "mpc_reveal": SamplingParams(mpc_reveal="logits"),
    "stop_recitation": SamplingParams(stop_recitation=True),
}
NEEDS_LOGITS = {"top_p", "top_k", "min_p", "repetition_penalty", "logprobs"}
REFUSED = {
    "open": {"mpc_reveal", "stop_recitation"},
    "shared": {"mpc_reveal", "stop_recitation"},
    "partitioned": {"mpc_reveal", "max_tokens", "prompt_logprobs", "repetition_penalty"},
    "obfuscated": {"mpc_reveal", "max_tokens", "prompt_logprobs", "repetition_penalty", "stop_recitation"},
    "isolated": {"mpc_reveal", "max_tokens", "prompt_logprobs", "stop_recitation"},
    "mpc": {"max_tokens", "prompt_logprobs", "stop_recitation", *NEEDS_LOGITS},
}


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("name", REFUSED)
def test_each_level_refuses_just_what_it_cannot_serve(name: str, wish: str) -> None:
    assert wish in WISHES[wish].requested and not SamplingParams().requested
    if wish not in REFUSED[name]:
        LEVELS[name].refuse(WISHES[wish].requested)
        return
    with pytest.raises(InvalidRequest) as refused:
        LEVELS[name].refuse(WISHES[wish].requested)
    assert refused.value.param == wish and refused.value.hint
    if name == "mpc" and wish in NEEDS_LOGITS:
        LEVELS[name].refuse(WISHES[wish].requested, logits=True)


def test_only_the_service_decodes_for_several_tenants_at_once() -> None:
    assert {name for name, level in LEVELS.items() if level.decodes is Decodes.SERVICE} == {
        "open",
        "shared",
        "partitioned",
        "obfuscated",
    }


def test_the_readme_says_what_the_table_says() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")]
    for level in LEVELS.values():
        [row] = [row for row in rows if f"`{level.name}`" in row.split("|")[1]]
        assert level.service_sees in row and level.others_learn in row, level.name


def _names_a_level(tree: ast.AST) -> list[str]:
    """Level names in code: the unmistakable ones anywhere, the others where something is compared with them."""
    compared = [
        constant
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        for constant in ast.walk(side)
    ]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in LEVELS:
            sure = node.value not in ("open", "shared", "mpc")
            found += [f"{node.lineno}: {node.value}"] if sure or node in compared else []
    return found


def test_nobody_else_names_a_level() -> None:
    allowed = (SOURCE / "levels.py", SOURCE / "controller" / "routes")
    named = {
        str(file.relative_to(SOURCE)): found
        for file in sorted(SOURCE.rglob("*.py"))
        if not any(file == place or place in file.parents for place in allowed)
        and (found := _names_a_level(tree_of(file)))
    }
    assert not named
    assert _names_a_level(ast.parse('x = level == "open"; y = ("isolated",)')) == ["1: open", "1: isolated"]
