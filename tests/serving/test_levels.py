"""Output invariance: the levels of protection give the same answers, token for token and logprob for logprob.

The whole node serves: processes, sandboxes, links and HTTP. Prompts arrive at once, so that batches, core leases and
vaults mix as they will; what a request says must not show any of it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from cloister.config import DEVELOPMENT_KEY
from cloister.models.source import ModelFolder
from tests.served import running_server
from tests.serving.prompts import PADDING, make_prompts

PATIENCE_S = 2700
pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_S)]  # 200 prompts of a whole model, on two slow cores

GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 7, "presence_penalty": 0.4, "min_tokens": 12}
Chat = list[dict[str, Any]]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


class Node:
    """A server, asked many things at once."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def answers(self, bodies: list[dict[str, Any]], level: str) -> list[Any]:
        """What each body got, all of them under way together: text and every logprob."""
        headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}", "X-Cloister-Protection": level}
        limits = httpx.Limits(max_connections=None)
        # No time limit but the test's own: two hundred at once on two slow cores.
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=None, limits=limits) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]

            async def ask(body: dict[str, Any]) -> Any:
                wanted = {"model": model, "max_tokens": 16, "logprobs": True, "top_logprobs": 2, **body}
                reply = await client.post("/v1/chat/completions", json=wanted)
                assert reply.status_code == 200, reply.text
                assert reply.headers["x-cloister-protection"] == level
                choice = reply.json()["choices"][0]
                usage = reply.json()["usage"]
                del usage["prompt_tokens_details"]  # how much was found computed is not the answer
                return choice["message"]["content"], choice["logprobs"], usage

            return await asyncio.gather(*(ask(body) for body in bodies))


def chats(prompts: list[str]) -> list[Chat]:
    return [[{"role": "user", "content": prompt}] for prompt in prompts]


def with_public_spans(prompts: list[str]) -> list[Chat]:
    """Public instructions of several lengths, then something private inside and after public words."""
    return [
        [
            {"role": "system", "content": " ".join(PADDING[: number % 4 + 1]), "public": True},
            {"role": "user", "content": f"Public. <confidential>{prompt}</confidential> Answer.", "public": True},
        ]
        for number, prompt in enumerate(prompts)
    ]


async def compare(node: Node, messages: list[Chat], how: dict[str, Any]) -> list[Any]:
    """The answers, after seeing that they are the same at every level."""
    bodies = [{"messages": each, **how} for each in messages]
    opened = await node.answers(bodies, "open")
    assert await node.answers(bodies, "partitioned") == opened
    every = max(6, len(bodies) // 10)
    assert await node.answers(bodies[::every], "isolated") == opened[::every]
    return opened


async def second_turns(node: Node, messages: list[Chat], how: dict[str, Any]) -> None:
    """The same conversations a turn further, in sessions that keep their vaults between the turns."""
    sessions = [{"messages": each, "session": f"chat-{number}", **how} for number, each in enumerate(messages)]
    first = await node.answers(sessions, "partitioned")
    longer = [
        [*each, {"role": "assistant", "content": text or "…"}, {"role": "user", "content": "Go on, please."}]
        for each, (text, *_) in zip(messages, first, strict=True)
    ]
    opened = await node.answers([{"messages": each, **how} for each in longer], "open")
    kept = [{**session, "messages": each} for session, each in zip(sessions, longer, strict=True)]
    assert await node.answers(kept, "partitioned") == opened


SHORT, *WHOLE = ((), ("--dtype", "bf16"), ("--dtype", "fp32"))


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A narrow model, and before a release the default one in either precision."""
    if request.param == SHORT:
        yield Node(request.getfixturevalue("short_server"))
        return
    patient = ("--request-timeout", str(PATIENCE_S))  # the last of two hundred waits for all others
    with running_server(tmp_path_factory.mktemp("served") / "log", *request.param, *patient) as server:
        yield Node(server.url())


@pytest.mark.parametrize(
    ("node", "count"),
    [
        pytest.param(SHORT, 8, id="short"),
        *(pytest.param(whole, 200, id=whole[1], marks=pytest.mark.release) for whole in WHOLE),
    ],
    indirect=["node"],
)
async def test_levels_agree_on_many_prompts(node: Node, count: int) -> None:
    """Greedy and seeded, one turn and two, with and without public spans."""
    prompts = make_prompts(count, seed=5)
    plain, tagged = chats(prompts[: count * 3 // 5]), with_public_spans(prompts[count * 3 // 5 :])
    answers = await compare(node, [*plain, *tagged], GREEDY)
    assert len({text for text, *_ in answers}) > count // 2
    few = max(1, count * 3 // 20)
    await compare(node, [*plain[:few], *tagged[:few]], SEEDED)
    few = max(1, count // 10)
    await second_turns(node, [*plain[:few], *tagged[:few]], GREEDY)


@pytest.fixture(scope="module")
def qwen2(smollm_folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Another architecture: random weights, biased projections, and the default model's tokenizer."""
    folder = tmp_path_factory.mktemp("qwen2")
    config = Qwen2Config(
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=49152,
        max_position_embeddings=2048,
    )
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.08) if parameter.dim() > 1 else parameter.data.add_(0.02)
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (smollm_folder.path / name).is_file():
            shutil.copy(smollm_folder.path / name, folder)
    yield folder


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.release)])
@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.release)])
async def test_levels_agree_on_another_architecture(qwen2: Path, count: int, dtype: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--model", str(qwen2), "--dtype", dtype) as server:
        node = Node(server.url())
        prompts = make_prompts(count, seed=8)
        half = count * 5 // 8
        await compare(node, [*chats(prompts[:half]), *with_public_spans(prompts[half:])], GREEDY)
        await compare(node, chats(prompts[: count // 2]), SEEDED)
        await second_turns(node, with_public_spans(prompts[: count // 4]), GREEDY)
