"""Output invariance with private layers: the levels agree, on many prompts, with public spans and later turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.models.source import ModelFolder
from tests.served import running_server
from tests.serving.prompts import make_prompts
from tests.serving.test_levels import GREEDY, SEEDED, Node, chats, compare, second_turns, with_public_spans

PATIENCE_S = 2700
pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_S)]
WHOLE = [(dtype, layers) for dtype in ("bf16", "fp32") for layers in (1, 4)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(("short", 2), id="short"), *(pytest.param(one, marks=pytest.mark.release) for one in WHOLE)],
)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder
) -> Iterator[Node]:
    kind, layers = request.param
    log: Path = tmp_path_factory.mktemp("served") / "log"
    model = ("--model", str(short_folder.path)) if kind == "short" else ("--dtype", kind)
    with running_server(log, *model, "--private-layers", str(layers), "--verify", "all") as server:
        yield Node(server.url())


async def test_levels_agree_with_private_layers(node: Node) -> None:
    prompts = make_prompts(8, seed=6)
    both = [*chats(prompts[:5]), *with_public_spans(prompts[5:])]
    answers = await compare(node, both, GREEDY)
    assert len({text for text, *_ in answers}) > 4
    await compare(node, both[3:7], SEEDED)
    await second_turns(node, both[4:6], GREEDY)
