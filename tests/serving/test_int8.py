"""A node with int8 weights: it rehearses and verifies, and its levels agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.models.source import ModelFolder
from tests.served import running_server
from tests.serving.prompts import make_prompts
from tests.serving.test_levels import GREEDY, SEEDED, Node, chats, compare, with_public_spans
from tests.serving.test_obfuscated import GIVEN, MARKED, REAL, text

PATIENCE_S = 2700
pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_S)]


@pytest.fixture(scope="module", params=["short", pytest.param("whole", marks=pytest.mark.release)])
def log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder
) -> Iterator[tuple[Path, Node]]:
    written = tmp_path_factory.mktemp("served") / "log"
    model = ("--model", str(short_folder.path)) if request.param == "short" else ()
    with running_server(written, *model, "--weights", "int8", "--verify", "all") as server:
        yield written, Node(server.url())


async def test_levels_agree_with_int8_weights(log: tuple[Path, Node]) -> None:
    written, node = log
    prompts = make_prompts(6, seed=12)
    both = [*chats(prompts[:4]), *with_public_spans(prompts[4:])]
    opened = await compare(node, both, GREEDY)
    assert len({text for text, *_ in opened}) > 3
    await compare(node, both[3:5], SEEDED)
    assert await node.answers([{"messages": both[0], **GREEDY}], "shared") == opened[:1]
    [real], [marked] = chats([text(*REAL)]), chats([MARKED])
    [alone] = await node.answers([{"messages": real, **GREEDY}], "open")
    hidden = {"messages": marked, "obfuscation": {"substitutes": GIVEN}, **GREEDY}
    [among_others] = await node.answers([hidden], "obfuscated")
    assert among_others[:2] == alone[:2]
    assert "int8, native-int8 kernels" in written.read_text()
