"""Both ends of a link on a GPU, where there is one: in one process, on two streams, as service and vault use them.

While a stream waits to be asked, what makes CUDA wait for the whole device would wait for ever: a kernel's first call,
say. So all is used once before anything is exposed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloister.compute.gpu.find import refusal
from cloister.compute.layout import Chunk, Layout, Remote, Wanted
from cloister.engine.graph_runner import GraphRunner
from cloister.engine.runner import reserve_cache

pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal())

VOCABULARY = 512


def decoder() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    from cloister.compute.gpu.device import GpuDevice
    from cloister.models.decoder import RawParts
    from cloister.models.fused import FusedDecoder

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=4096)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    device = GpuDevice()
    device.share("/nowhere")  # in one process nobody need be met
    torch.zeros(1, device="cuda")
    device._open = True
    weights = {name: tensor.cuda() for name, tensor in model.state_dict().items()}
    return FusedDecoder(config, RawParts(weights, device.kernels), device, 4096)


class Vault:
    """One prompt in each slot: prefilled and exposed."""

    def __init__(self, made: Any, prompts: list[list[int]], mailbox: int) -> None:
        self.cache = reserve_cache(made, 32)
        self.runner = GraphRunner(made, self.cache)
        self.answerer = made.device.answerer(made, self.cache, mailbox, mailbox)
        self.answerer.start()
        self.firsts, self.blocks, at = [], [], 0
        for prompt in prompts:
            used = range(at, at := at - (-len(prompt) // 16))
            self.blocks.append(used)
            logits = self.runner.forward([Chunk(prompt, 0, used, Layout(prompt=len(prompt)), Wanted.LAST)])
            self.firsts.append(int(logits.argmax()))

    def expose(self, slot: int, length: int) -> None:
        self.answerer.expose(slot, self.blocks[slot], start=0, end=length, rotation=length)


def service_of(made: Any, asker: Any) -> GraphRunner:
    """A service that has asked once, in each bucket: nobody."""
    service = GraphRunner(made, reserve_cache(made, 32), asker)
    nobody = Layout(prompt=0, remote=Remote(-1, 0))
    for rows in (1, 2, 4):
        service.forward([Chunk([0], 0, [row], nobody, Wanted.LAST) for row in range(rows)])
    asker.broken()
    return service


def opened(made: Any, prompt: list[int], steps: int) -> tuple[list[int], torch.Tensor]:
    runner = GraphRunner(made, reserve_cache(made, 32))
    layout, blocks = Layout(prompt=len(prompt), rotation=len(prompt)), range(-(-len(prompt) // 16) + 8)
    token, rows = int(runner.forward([Chunk(prompt, 0, blocks, layout, Wanted.LAST)]).argmax()), []
    tokens = [token]
    for step in range(steps):
        rows.append(runner.forward([Chunk([token], len(prompt) + step, blocks, layout, Wanted.LAST)]).clone())
        tokens.append(token := int(rows[-1].argmax()))
    return tokens, torch.cat(rows)


def test_a_silent_vault_is_late_and_another_row_keeps_its_bits() -> None:
    made = decoder()
    prompts = [[(3 * t) % VOCABULARY for t in range(40)], [5] * 30]
    asker = made.device.asker(made, 50)
    memories = asker.export()
    vault = Vault(made, prompts, memories[0])
    for link in range(2):  # nobody has the second
        asker.attach_at(link, link)
    service, right = service_of(made, asker), opened(made, prompts[0], 1)[1]
    vault.expose(0, 40)
    layouts = [Layout(prompt=0, remote=Remote(link, 0)) for link in range(2)]
    chunks = [Chunk([vault.firsts[0]], 0, [link], layouts[link], Wanted.LAST) for link in range(2)]
    logits = service.forward(chunks)
    assert asker.broken() == {1: "vault_timeout"}
    found = logits.clone()
    asker.detach(1)
    service.forward(chunks)
    assert asker.broken() == {1: "vault_lost"}
    vault.answerer.leave()
    assert torch.equal(found[:1], right)
