"""What the controller holds of prompts and answers, and for how long: the claims of controller/__init__.py.

Objects are searched, not memory: tests/redteam/test_canary.py searches the memory of a whole node.
"""

from __future__ import annotations

import asyncio
import gc
from types import ModuleType
from typing import Any

import pytest

from cloister.controller import views
from cloister.messages.controller_frontend import Ask, SubmitTokens
from cloister.messages.controller_service import Generate
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Accepted, Tokens
from tests.controller.fakes import PARAMS, Node
from tests.controller.test_relay import settle

TEXT = "A canary that sings once."
PROMPT = (91, 17, 83)
ANSWER = (89, 23, 97)


def held(root: object) -> list[Any]:
    """Every object that can be reached from here; not by way of modules and their globals."""
    found, rest = {id(root): root}, [root]
    while rest:
        for one in gc.get_referents(rest.pop()):
            is_code = isinstance(one, ModuleType | type) or (isinstance(one, dict) and "__builtins__" in one)
            if id(one) not in found and not is_code:
                found[id(one)] = one
                rest.append(one)
    return list(found.values())


def holds(node: Node, wanted: str | bytes | tuple[int, ...]) -> bool:
    """A text or bytes as they are; tokens side by side in any list or tuple."""
    if not isinstance(wanted, tuple):
        return any(type(one) is type(wanted) and one == wanted for one in held(node.relay))
    lists = [tuple(one) for one in held(node.relay) if isinstance(one, list | tuple) and len(one) >= len(wanted)]
    return any(one[at : at + len(wanted)] == wanted for one in lists for at in range(len(one) - len(wanted) + 1))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "KEPT_S", 0.05)


async def end_of(node: Node, number: int) -> None:
    node.service.say(Accepted(number), Tokens(number, ANSWER))
    await settle()
    assert holds(node, ANSWER), "while the request lasts"
    node.service.say(Tokens(number, (4,), finish="stop"))
    await settle()
    await asyncio.sleep(0.15)
    assert not holds(node, ANSWER), "after the last view"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("level", ["open", "shared"])
async def test_a_prompt_that_the_service_gets_whole_is_held_while_its_request_lasts(node: Node, level: Any) -> None:
    node.send(SubmitTokens(5, "ann", PROMPT, PARAMS, level=level))
    number = (await node.service.next(Generate)).request_id
    assert holds(node, PROMPT)
    await end_of(node, number)
    assert not holds(node, PROMPT)


async def test_a_text_for_the_detector_is_not_held_once_it_was_passed_on(node: Node) -> None:
    passed: list[str] = []
    node.relay.shared.examine = lambda request_id, text, ends: passed.append(text)
    node.send(SubmitTokens(5, "ann", PROMPT, PARAMS, level="shared", text=TEXT, ends=(len(TEXT),)))
    assert passed == [TEXT]
    passed.clear()
    assert not holds(node, TEXT)
    node.relay.shared.stash = TEXT  # type: ignore[attr-defined]
    assert holds(node, TEXT), "the search finds what is there"


@pytest.mark.usefixtures("short")
async def test_at_partitioned_the_prompt_is_gone_when_its_vault_has_it_and_the_answer_after_the_view(
    node: Node,
) -> None:
    prompt = TEXT.encode()
    node.send(Ask(5, "ann", "partitioned", "s", False, prompt, PARAMS))
    vault = await node.vault(0)
    await vault.serve_first(7)
    vault.messages.clear()
    number = (await node.service.next(Generate)).request_id
    assert not holds(node, prompt)
    await end_of(node, number)


async def test_at_isolated_no_token_of_an_answer_is_held(node: Node) -> None:
    node.send(Ask(5, "ann", "isolated", "s", True, b"prompt", PARAMS))
    vault = await node.vault(0)
    number = (await vault.next(AssignPrompt)).request_id
    vault.say(PromptAccepted(number, 3), Tokens(number, ANSWER))
    assert (await node.frontend.next(Accepted)).prompt_tokens == 3
    assert (await node.frontend.next(Tokens)).tokens == ANSWER
    await settle()
    assert not holds(node, ANSWER) and node.relay.requests.output_tokens == 3
