"""Builds the GPU's kernels and checks them, on a GPU machine, in one run. `cloister bench gpu` times what serves.

    python scripts/gpu_check.py --json FILE [--gguf SmolLM2.gguf] [--skip checks,products,prefill]
    python scripts/gpu_check.py --json FILE --partition [--gguf SmolLM2.gguf]

Checks: every kernel against float64; bit for bit at other numbers of rows, chunks and splits; with real weights, 64
sequences together against each alone, recorded steps against others, and greedy tokens against transformers in fp32.
With --partition: `open` and `partitioned` have the same bits, also beside a vault that never answers. Times: each
kernel alone for a Llama-3-8B shape, its products beside cuBLAS's, and prefill. Needs torch with CUDA and cuda-core;
real weights need transformers and gguf.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from cloister.compute.gpu.checks import check_attention, check_linear, check_norm_and_embedding, error
from cloister.compute.gpu.device import GpuDevice
from cloister.compute.gpu.find import fetch
from cloister.compute.layer import Packed
from cloister.compute.layout import Chunk, Layout, Wanted, lay_out
from cloister.engine.graph_runner import GraphRunner
from cloister.engine.runner import ModelRunner
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder
from cloister.models.plain_config import PlainConfig
from cloister_bench.gpu.attention import AttentionProcesses
from cloister_bench.gpu.breakdown import products_us, small_us
from cloister_bench.gpu.clock import graphed, median_ms
from cloister_bench.gpu.measurer import random_decoder
from cloister_bench.gpu.mps import mps
from cloister_bench.gpu.shapes import LLAMA_3_8B, SHAPES, weight_bytes
from cloister_bench.gpu.steps import measure_steps

MOST_ERROR = 5e-3


def opened_gpu() -> GpuDevice:
    device = GpuDevice()
    device.open()
    return device


def checks(device: GpuDevice) -> dict[str, Any]:
    linear, linear_differs = check_linear(device)
    attention, attention_differs = check_attention(device)
    errors = {**linear, **check_norm_and_embedding(device), **attention}
    return {
        "errors": errors,
        "worst": max(errors.values()),
        "wrong": [name for name, each in errors.items() if not each < MOST_ERROR],
        "other_bits": linear_differs + attention_differs,
    }


def parts_of_a_step(decoder: FusedDecoder) -> list[dict[str, Any]]:
    """Each product over all layers, in one graph, ours and cuBLAS's; and each other kernel."""
    rows = []
    for users in (1, 8, 16, 32, 64):
        row: dict[str, Any] = {"users": users}
        for name, us in products_us(decoder, users).items():
            weights: list[Packed] = [getattr(layer, name) for layer in decoder._layers]
            k, columns = weights[0].k, weights[0].columns
            plain = [packed.data.view(-1)[: columns * k].view(columns, k) for packed in weights]
            x = torch.randn(users, k, device="cuda").bfloat16()
            out = torch.empty(users, columns, device="cuda", dtype=torch.bfloat16)

            def theirs(plain: list[torch.Tensor] = plain, x: torch.Tensor = x, out: torch.Tensor = out) -> None:
                for weight in plain:
                    torch.mm(x, weight.t(), out=out)

            cublas = median_ms(graphed(theirs), 3, 10) * 1e3 / len(weights)
            for title, each in (("ours", us), ("cublas", cublas)):
                row[f"{name}_{title}_us"] = round(each, 2)
                row[f"{name}_{title}_tb_s"] = round(columns * k * 2 / each / 1e6, 2)
        row |= {f"{name}_us": round(us, 2) for name, us in small_us(decoder, users).items()}
        rows.append(row)
        print(row, flush=True)
    return rows


def prefill(decoder: FusedDecoder, config: PlainConfig) -> list[dict[str, Any]]:
    rows = []
    for tokens in (128, 512, 2048):
        cache = decoder.device.cache(decoder.cache_shape, tokens // 16 + 1)
        batch = lay_out([Chunk(range(tokens), 0, range(tokens // 16 + 1))], decoder.queries_per_kv_head)
        ms = median_ms(lambda batch=batch, cache=cache: decoder.hidden(batch, cache), 2, 5)
        flops = 2 * tokens * (weight_bytes(config) / 2 - config.vocab_size * config.hidden_size)
        rows.append({"tokens": tokens, "ms": ms, "tflop_s": flops / ms / 1e9})
        print(rows[-1], flush=True)
    return rows


SILENT = 6
"""In the case of so many users the last one's vault never answers."""
CASES = ((1, 64), (8, 64), (32, 64), (64, 64), (64, 700), (SILENT, 64))
ATTENTION = (1, 8)
"""Attention processes, no more than users."""
WATCHDOG_S = 120


def load_gguf(gguf: Path) -> Any:
    """The model in transformers, its weights rounded to bf16 and computed with in fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return torch.nn.Module.cuda(model).eval()  # transformers' own refuses a model that was quantised once


def partition(gguf: Path | None, found: list[dict[str, Any]], save: Callable[[], None]) -> None:
    """Decoding with prompts in attention processes, under MPS, against `open`: the same bits, and its time."""
    by_users = {users: {min(users, count) for count in ATTENTION if count <= users or count == 8} for users, _ in CASES}
    processes = AttentionProcesses(set.union(*by_users.values()))  # before the GPU is open
    device = opened_gpu()
    if gguf is None:
        decoder = random_decoder(LLAMA_3_8B)
    else:
        model = load_gguf(gguf)
        decoder = FusedDecoder(model.config, RawParts(dict(model.state_dict()), device.kernels), device, 2048)
    for users, prompt in CASES:
        settings = sorted(by_users[users])
        steps = measure_steps(decoder, processes, users, prompt, settings, isolated=False, silent=users == SILENT)
        for row in steps:
            found.append({"users": users, "prompt": prompt, **row})
            save()
            print(found[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--skip", default="")
    parser.add_argument("--partition", action="store_true", help="prompts in other processes, under MPS")
    options = parser.parse_args()
    skipped, began = options.skip.split(","), time.monotonic()
    found: dict[str, Any] = {"torch": torch.__version__}

    def note(name: str, value: Any) -> None:
        found[name] = value
        found["seconds"] = time.monotonic() - began
        options.json.write_text(json.dumps(found, indent=1))
        print(f"## {name} {found['seconds']:.0f} s", flush=True)

    if options.partition:
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
        rows: list[dict[str, Any]] = []
        with mps() as there:
            if not there:
                raise SystemExit("NVIDIA's MPS is not there.")
            fetch()
            partition(options.gguf, rows, lambda: note("partition", rows))
            faulthandler.cancel_dump_traceback_later()
        return
    device = opened_gpu()
    torch.manual_seed(int(time.time()))
    found["gpu"] = torch.cuda.get_device_name()
    if "checks" not in skipped:
        note("checks", checks(device))
        print({name: found["checks"][name] for name in ("worst", "wrong")}, found["checks"]["other_bits"][:40])
    if options.gguf:
        note("real_weights", real_weights(device, options.gguf))
        print(found["real_weights"])
    if "products" not in skipped:
        decoder = random_decoder(LLAMA_3_8B)
        note("products", parts_of_a_step(decoder))
        if "prefill" not in skipped:
            note("prefill", prefill(decoder, SHAPES[LLAMA_3_8B]))


def real_weights(device: GpuDevice, gguf: Path) -> dict[str, Any]:
    """SmolLM2 in bf16 here, in fp32 with transformers: the same weights, greedy, 48 tokens after each of 64 prompts."""
    model = load_gguf(gguf)
    config, weights = model.config, dict(model.state_dict())
    decoder = FusedDecoder(config, RawParts(weights, device.kernels), device, 2048)
    blocks_each = 16
    cache = device.cache(decoder.cache_shape, 64 * blocks_each)
    plain, recorded = ModelRunner(decoder, cache), GraphRunner(decoder, cache)
    generator = torch.Generator().manual_seed(1)
    lengths = [5 + 2 * i for i in range(64)]
    prompts = [torch.randint(100, 40000, (length,), generator=generator).tolist() for length in lengths]
    blocks = [range(i * blocks_each, (i + 1) * blocks_each) for i in range(64)]
    new, other_bits, found = 48, [], {"sequences": 64, "tokens": 48}

    def layout(i: int) -> Layout:
        return Layout(prompt=lengths[i], origin=lengths[i])

    def prompt_chunk(i: int, start: int = 0, end: int | None = None) -> Chunk:
        end = end or lengths[i]
        return Chunk(prompts[i][start:end], start, blocks[i], layout(i), Wanted.LAST)

    first = plain.forward([prompt_chunk(i) for i in range(64)]).clone()
    for i in (0, 1, 31, 63):
        alone = plain.forward([prompt_chunk(i)])[0].clone()
        plain.forward([prompt_chunk(i, 0, 3)])
        chunked = plain.forward([prompt_chunk(i, 3)])[0]
        if not torch.equal(alone, first[i]):
            other_bits.append(f"prompt {i} alone")
        if not torch.equal(chunked, first[i]):
            other_bits.append(f"prompt {i} in two chunks")
    with torch.no_grad():
        reference = torch.stack([model(torch.tensor([p], device="cuda")).logits[0, -1] for p in prompts])
    found["logits_error"] = error(first, reference)
    found["first_tokens_equal"] = float((first.argmax(-1) == reference.argmax(-1)).float().mean())

    def decode(runner: ModelRunner, members: list[int]) -> torch.Tensor:
        """Logits of every step, each fed the greatest of the last."""
        tokens, steps = first[members].argmax(-1).tolist(), []
        for step in range(new):
            chunks = [
                Chunk([token], lengths[i] + step, blocks[i], layout(i), Wanted.LAST)
                for i, token in zip(members, tokens, strict=True)
            ]
            steps.append(runner.forward(chunks).clone())
            tokens = steps[-1].argmax(-1).tolist()
        return torch.stack(steps)

    together = decode(recorded, list(range(64)))
    for title, runner, members in (
        ("64 rows, not recorded", plain, list(range(64))),
        ("one row", recorded, [5]),
        ("one row, not recorded", plain, [63]),
        ("seven rows", recorded, [1, 9, 17, 25, 33, 41, 62]),
    ):
        if not torch.equal(decode(runner, members), together[:, members]):
            other_bits.append(title)
    replayed = 0
    for i in range(0, 64, 9):
        answer = [int(first[i].argmax()), *together[:-1, i].argmax(-1).tolist()]
        chunk = Chunk([*prompts[i], *answer], 0, blocks[i], layout(i), Wanted.ALL)
        replay = plain.forward([chunk])[lengths[i] :]
        replayed += 1
        if not torch.equal(replay, together[:, i]):
            other_bits.append(f"replay of {i}")
    found["replayed"] = replayed
    found["other_bits"] = other_bits

    own = torch.cat((first.argmax(-1)[None], together[:-1].argmax(-1))).t().tolist()
    equal, near = 0, 0
    with torch.no_grad():
        for i, answer in enumerate(own):
            logits = model(torch.tensor([[*prompts[i], *answer]], device="cuda")).logits[0, lengths[i] - 1 : -1]
            chosen = torch.tensor(answer, device="cuda")
            equal += int((logits.argmax(-1) == chosen).sum())
            gap = logits.amax(-1) - logits.gather(1, chosen[:, None])[:, 0]
            near += int((gap < 0.25).sum())
    found["greedy_equal_to_transformers_fp32"] = equal / (64 * new)
    found["within_a_quarter_logit_of_its_best"] = near / (64 * new)
    bucket, _ = recorded._recorded[64, 32, False]
    tokens_64 = decoder.device.record(lambda: decoder.logits(decoder.hidden(bucket.batch, cache)))
    found["step_of_64_ms"] = median_ms(tokens_64, 5, 50)
    return found


if __name__ == "__main__":
    main()
