"""Builds the GPU's kernels, checks them and times them: everything on a GPU machine, in one run.

    python scripts/gpu_check.py --json FILE [--gguf SmolLM2.gguf] [--skip checks,steps,prefill]

Checks: every kernel against float64; bit for bit at other numbers of rows, chunks and splits; with real weights, 64
sequences together against each alone, recorded steps against others, and greedy tokens against transformers in fp32.
Times: decode steps of a Llama-3-8B shape with random weights against the floor (bytes over measured bandwidth), its
products against cuBLAS, and prefill. Needs torch with CUDA and cuda-core; real weights need transformers and gguf.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from cloister.compute.gpu.checks import check_attention, check_linear, check_norm_and_embedding, error
from cloister.compute.gpu.kernels import GpuDevice
from cloister.compute.layer import Packed
from cloister.compute.layout import Chunk, Layout, Remote, Wanted, lay_out
from cloister.engine.graph_runner import Bucket, GraphRunner
from cloister.engine.runner import ModelRunner
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder

MOST_ERROR = 5e-3
LLAMA_3_8B = SimpleNamespace(
    model_type="llama",
    hidden_act="silu",
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)


def opened_gpu() -> GpuDevice:
    device = GpuDevice()
    device.open()
    return device


class RandomWeights(Mapping[str, torch.Tensor]):
    """Weights of a shape, made on the GPU when they are asked for."""

    def __init__(self, config: Any) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self._layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        self._ends = ("model.embed_tokens", "lm_head")
        self._vocabulary = (config.vocab_size, hidden)
        self._hidden = hidden

    def __getitem__(self, name: str) -> torch.Tensor:
        if "norm" in name:
            return torch.rand(self._hidden, device="cuda") + 0.5
        stem = name.removesuffix(".weight")
        shape = self._vocabulary if stem in self._ends else self._layer[stem.split(".", 3)[3]]
        return (torch.randn(shape, device="cuda") / shape[1] ** 0.5).bfloat16()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not name.endswith(("bias", "q_norm.weight", "k_norm.weight"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return 0


def median_ms(run: Callable[[], object], warm: int = 5, count: int = 30) -> float:
    for _ in range(warm):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


def graphed(run: Callable[[], object]) -> Callable[[], object]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GiB."""
    a, b = (torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
    return 2 * (1 << 32) / (median_ms(lambda: b.copy_(a), 2, 8) / 1e3)


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


def step_bytes(config: Any, users: int, context: int) -> int:
    """The fewest bytes a step must read: every weight once, every key and value once."""
    hidden, dim = config.hidden_size, config.head_dim
    keys = config.num_key_value_heads * dim
    layer = (config.num_attention_heads * dim * 2 + 2 * keys + 3 * config.intermediate_size) * hidden
    weights = 2 * (config.num_hidden_layers * layer + config.vocab_size * hidden)
    return weights + users * context * 4 * keys * config.num_hidden_layers


def decode_steps(decoder: FusedDecoder, config: Any, rate: float, seconds: float) -> list[dict[str, Any]]:
    rows, began = [], time.monotonic()
    for prompt in (64, 2048):
        for users in (1, 8, 32, 64):
            if time.monotonic() - began > seconds:
                break
            each = -(-prompt // 16) + 8
            cache = decoder.device.cache(decoder.cache_shape, users * each)
            cache._held.normal_()
            layout = Layout(prompt=prompt, origin=prompt)
            chunks = [
                Chunk([7 + u], prompt + 1, range(u * each, (u + 1) * each), layout, Wanted.LAST) for u in range(users)
            ]
            width = next(width for width in (32, 64, 128, 256) if width >= each)
            bucket = Bucket(users, width, decoder.device.place)
            bucket.fill(lay_out(chunks, decoder.queries_per_kv_head))

            def run(bucket: Bucket = bucket, cache: Any = cache) -> torch.Tensor:
                logits = decoder.logits(decoder.hidden(bucket.batch, cache))
                decoder.device.kernels.advance(logits, bucket.batch)
                return logits

            step = decoder.device.record(run)
            ms = median_ms(step, 8, 64)
            floor = step_bytes(config, users, prompt + 40) / rate * 1e3
            rows.append({"users": users, "prompt": prompt, "ms": ms, "floor_ms": floor, "to_floor": ms / floor})
            print(rows[-1], flush=True)
            del cache, bucket, step
    return rows


def parts_of_a_step(decoder: FusedDecoder) -> list[dict[str, Any]]:
    """Each product over all layers, in one graph, ours and cuBLAS's; and each other kernel."""
    rows, layers, kernels = [], decoder._layers, decoder.device.kernels
    for users in (1, 8, 16, 32, 64):
        row: dict[str, Any] = {"users": users}
        for name in ("qkv", "out", "gate_up", "down"):
            weights: list[Packed] = [getattr(layer, name) for layer in layers]
            k, columns = weights[0].k, weights[0].columns
            padded = max(8, users)
            x = torch.randn(padded * k, device="cuda").bfloat16()
            space = kernels.workspace(layers[0], users)

            def ours(
                weights: list[Packed] = weights, x: torch.Tensor = x, padded: int = padded, space: Any = space
            ) -> None:
                for packed in weights:
                    gated = space.gated if packed.gate else None
                    kernels._product(x, packed, padded, None if packed.gate else space.sums, gated)

            plain = [packed.data.view(-1)[: columns * k].view(columns, k) for packed in weights]
            rows_in, out = x.view(padded, k)[:users], torch.empty(users, columns, device="cuda", dtype=torch.bfloat16)

            def theirs(plain: list[torch.Tensor] = plain, x: torch.Tensor = rows_in, out: torch.Tensor = out) -> None:
                for weight in plain:
                    torch.mm(x, weight.t(), out=out)

            for title, run in (("ours", ours), ("cublas", theirs)):
                us = median_ms(graphed(run), 3, 10) * 1e3 / len(weights)
                row[f"{name}_{title}_us"] = round(us, 2)
                row[f"{name}_{title}_tb_s"] = round(columns * k * 2 / us / 1e6, 2)
        row |= {f"{name}_us": round(us, 2) for name, us in small_kernels(decoder, users).items()}
        rows.append(row)
        print(row, flush=True)
    return rows


def small_kernels(decoder: FusedDecoder, users: int) -> dict[str, float]:
    """Microseconds of what is no product, each over all layers in one graph; 64 tokens in the prompt, 16 answered."""
    kernels, layers = decoder.device.kernels, decoder._layers
    cache = decoder.device.cache(decoder.cache_shape, users * 8)
    layout = Layout(prompt=64, origin=64)
    chunks = [Chunk([7], 80, range(u * 8, u * 8 + 8), layout, Wanted.LAST) for u in range(users)]
    bucket = Bucket(users, 32, decoder.device.place)
    bucket.fill(lay_out(chunks, decoder.queries_per_kv_head))
    batch, shape, padded = bucket.batch, layers[0].shape, max(8, users)
    space, angles = kernels.workspace(layers[0], users), decoder._rotary.at(batch.positions, batch.rotations)
    x = torch.randn(users, layers[0].qkv.k, device="cuda")
    sums = [kernels._product(space.normed, packed, padded, space.sums) for packed in (layers[0].down, layers[0].qkv)]
    norms = (None, None, np.float32(1e-5), angles.cosine, angles.sine)
    sizes = (shape.heads, shape.kv_heads, shape.dim)
    runs: dict[str, Callable[[Any], None]] = {
        "norm": lambda layer: kernels._norm(
            x, sums[0], users, layer.qkv.k, padded, layer.mlp_norm, shape.epsilon, space.normed
        ),
        "rotate": lambda layer: kernels._rotate(
            sums[1], users, padded, norms, batch, space.q, cache, layer.index, *sizes
        ),
        "attend": lambda layer: kernels._attend(
            space.q, space.attended, padded, batch, angles, cache, layer.index, shape.heads, shape.scale, 0
        ),
    }
    times = {}
    for name, run in runs.items():
        times[name] = median_ms(graphed(lambda run=run: [run(layer) for layer in layers]), 3, 10) * 1e3 / len(layers)
    logits = torch.randn(users, decoder.vocabulary, device="cuda")
    times["greatest"] = median_ms(graphed(lambda: kernels.greatest(logits)), 3, 10) * 1e3
    hidden = torch.randn(users, layers[0].qkv.k, device="cuda")
    times["head"] = median_ms(graphed(lambda: decoder.logits(hidden)), 3, 10) * 1e3
    return times


def prefill(decoder: FusedDecoder, config: Any) -> list[dict[str, Any]]:
    rows = []
    for tokens in (128, 512, 2048):
        cache = decoder.device.cache(decoder.cache_shape, tokens // 16 + 1)
        batch = lay_out([Chunk(range(tokens), 0, range(tokens // 16 + 1))], decoder.queries_per_kv_head)
        ms = median_ms(lambda batch=batch, cache=cache: decoder.hidden(batch, cache), 2, 5)
        flops = 2 * tokens * (step_bytes(config, 0, 0) / 2 - config.vocab_size * config.hidden_size)
        rows.append({"tokens": tokens, "ms": ms, "tflop_s": flops / ms / 1e9})
        print(rows[-1], flush=True)
    return rows


SILENT = 6
"""In the case of so many users the last one's vault never answers."""
CASES = ((1, 64), (8, 64), (32, 64), (64, 64), (1, 2048), (8, 2048), (32, 2048), (SILENT, 64))
SMALL_CASES = ((1, 64), (8, 64), (32, 64), (64, 64), (64, 700))
ATTENTION = (1, 8, 32)
"""Attention processes, no more than users."""
COMPARED, TIMED = 8, 48
WATCHDOG_S = 120


def same_decoder(device: GpuDevice, gguf: Path | None) -> FusedDecoder:
    """The same weights in every process: the file's, or random ones of a Llama-3-8B shape."""
    if gguf is not None:
        model = load_gguf(gguf)
        return FusedDecoder(model.config, RawParts(dict(model.state_dict()), device.kernels), device, 2048)
    torch.manual_seed(5)
    return FusedDecoder(LLAMA_3_8B, RawParts(RandomWeights(LLAMA_3_8B), device.kernels), device, 8192)


def load_gguf(gguf: Path) -> Any:
    """The model in transformers, its weights rounded to bf16 and computed with in fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return torch.nn.Module.cuda(model).eval()  # transformers' own refuses a model that was quantised once


def prefilled(decoder: FusedDecoder, users: int, prompt: int) -> tuple[Any, list[range]]:
    """A cache that holds every user's prompt, and its blocks: with room for an answer in blocks of their own."""
    each = -(-prompt // 16) + 8
    cache = decoder.device.cache(decoder.cache_shape, users * each)
    blocks = [range(user * each, (user + 1) * each) for user in range(users)]
    for user in range(users):
        tokens = [(13 * user + 7 * t) % decoder.vocabulary for t in range(prompt)]
        decoder.hidden(lay_out([Chunk(tokens, 0, blocks[user])], decoder.queries_per_kv_head), cache)
    torch.cuda.synchronize()
    return cache, blocks


def decoded(
    decoder: FusedDecoder, cache: Any, chunks: list[Chunk], asker: Any = None, asks: torch.Tensor | None = None
) -> tuple[torch.Tensor, float]:
    """Logits of the first steps, each fed the greatest of the last on the device; and a step's median time. With an
    asker: of rows whose prompts are behind its links."""
    width = next(width for width in (32, 64, 128, 256) if width >= len(chunks[0].blocks))
    bucket = Bucket(len(chunks), width, decoder.device.place, asks=asker is not None)
    bucket.fill(replace(lay_out(chunks, decoder.queries_per_kv_head), asks=asks))

    def run() -> torch.Tensor:
        logits = decoder.logits(decoder.hidden(bucket.batch, cache, asker))
        decoder.device.kernels.advance(logits, bucket.batch)
        return logits

    step = decoder.device.record(run)
    logits = torch.stack([step().clone() for _ in range(COMPARED)])
    return logits, median_ms(step, 5, TIMED)


def partition(found: list[dict[str, Any]], gguf: Path | None, save: Callable[[], None]) -> None:
    """Decoding with prompts in attention processes, under MPS, against `open`: the same bits, and its time."""
    from cloister.compute.gpu.lending import LentAnswerer, LentCache
    from cloister.compute.gpu.link import GpuAsker
    from cloister.compute.gpu.mailbox import Seats
    from cloister.compute.gpu.memory import SharedMemory

    processes, lines = [], []
    for _ in range(max(ATTENTION)):
        ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, "--json", "-", "--attention", str(theirs.fileno())]
        processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
        theirs.close()
        ours.settimeout(90)
        lines.append(ours)
    try:
        decoder = same_decoder(opened_gpu(), gguf)
        shape = decoder.cache_shape
        for users, prompt in SMALL_CASES if gguf else CASES:
            held, blocks = prefilled(decoder, users, prompt)
            layout = Layout(prompt=prompt, rotation=prompt)
            chunks = [Chunk([7 + u], prompt, blocks[u], layout, Wanted.LAST) for u in range(users)]
            right, open_ms = decoded(decoder, held, chunks)
            for attention in sorted({min(users, count) for count in ATTENTION if count <= users or count == 8}):
                seats = Seats(attention, users)
                asker = GpuAsker(decoder, 200, seats)
                memories, lent = asker.export(), []
                for number, line in enumerate(lines[:attention]):
                    case = {"places": len(range(number, users, attention)), "blocks": -(-prompt // 16)}
                    case |= {"shape": [shape.layers, shape.kv_heads, shape.dim], "scales": decoder.scales}
                    case |= {"queries": decoder.queries_per_kv_head}
                    socket.send_fds(line, [json.dumps(case).encode()], [memories[number]])
                arenas = [socket.recv_fds(line, 16, 64)[1] for line in lines[:attention]]
                for user in range(users):
                    cache = LentCache(shape, -(-prompt // 16), arenas[user % attention][user // attention])
                    cache._held.copy_(held._held[blocks[user].start :][: cache.blocks])
                    answerer = LentAnswerer(decoder, cache)
                    answerer.expose(0, range(cache.blocks), start=0, end=prompt, rotation=prompt)
                    lent.append((cache, answerer))
                    asker.seat(user, user)
                for memory in (*memories, *(one for each in arenas for one in each)):
                    os.close(memory)
                cache = decoder.device.cache(shape, users * 8)
                remotes = [Layout(prompt=0, remote=Remote(u, 0)) for u in range(users)]
                chunks = [Chunk([7 + u], 0, range(u * 8, u * 8 + 8), remotes[u], Wanted.LAST) for u in range(users)]
                asks, asked = asker.aim(lay_out(chunks, decoder.queries_per_kv_head).remotes, users), users
                if users == SILENT:  # the last asks a box that nobody answers
                    asked, nobody = users - 1, SharedMemory.create(asker.shape.size)
                    asks[0, -1], asks[2, -1] = asker.shape.boxes(nobody.address)[0], 0
                logits, ms = decoded(decoder, cache, chunks, asker, asks)
                row = {"users": users, "prompt": prompt, "attention": attention, "open_ms": open_ms}
                row |= {"partitioned_ms": ms, "ratio": ms / open_ms}
                row |= {"same_bits": torch.equal(logits[:, :asked], right[:, :asked])}
                row |= {"late": asker.late.nonzero().flatten().tolist()}
                found.append(row)
                save()
                print(row, flush=True)
                for line in lines[:attention]:
                    line.send(b"done")
                    line.recv(16)
                for each, _ in lent:
                    each._memory.close()
                for mailbox in asker._mailboxes:
                    mailbox.close()
                del cache, asker, lent
            del held
    finally:
        for line in lines:
            line.close()
        for process in processes:
            process.wait(timeout=30)


def be_attention(fd: int) -> None:
    """An attention process: for each case it lends memory and answers until told to stop."""
    from cloister.compute.base import AttentionShape, CacheShape

    link, device = socket.socket(fileno=fd), GpuDevice()
    device.open(waits=True)
    while True:
        message, fds, _, _ = socket.recv_fds(link, 4096, 1)
        if not message:
            return
        case, model = json.loads(message), AttentionShape()
        model.cache_shape, model.queries_per_kv_head = CacheShape(*case["shape"]), case["queries"]
        model.scales = case["scales"]
        holder = device.holder(model, case["blocks"], case["places"], fds[0])
        os.close(fds[0])
        arenas = holder.export()
        holder.start()
        socket.send_fds(link, [b"ready"], arenas)
        for arena in arenas:
            os.close(arena)
        if not link.recv(16):
            os._exit(1)
        holder.leave()
        for memory in (*holder._arenas, holder._mailbox):
            memory.close()
        link.send(b"over")


def start_mps() -> None:
    """For this process and those it starts."""
    folder = tempfile.mkdtemp(prefix="mps-")
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # else it keeps this process's pipes open
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=20, **quiet)


def stop_mps() -> None:
    """It waits until its clients are gone, of whom this process is one: nobody waits for it."""
    control = subprocess.Popen(["nvidia-cuda-mps-control"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert control.stdin is not None
    control.stdin.write(b"quit\n")
    control.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--skip", default="")
    parser.add_argument("--partition", action="store_true", help="prompts in another process, under MPS")
    parser.add_argument("--attention", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.partition or options.attention is not None:
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    if options.attention is not None:
        be_attention(options.attention)
        return
    if options.partition:
        start_mps()
    skipped, began = options.skip.split(","), time.monotonic()
    torch.manual_seed(int(time.time()))
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}

    def note(name: str, value: Any) -> None:
        found[name] = value
        found["seconds"] = time.monotonic() - began
        options.json.write_text(json.dumps(found, indent=1))
        print(f"## {name} {found['seconds']:.0f} s", flush=True)

    if options.partition:
        found["partition"] = []
        try:
            partition(found["partition"], options.gguf, lambda: note("partition", found["partition"]))
        finally:
            stop_mps()
        return
    device = opened_gpu()
    if "checks" not in skipped:
        note("checks", checks(device))
        print({name: found["checks"][name] for name in ("worst", "wrong")}, found["checks"]["other_bits"][:40])
    if options.gguf:
        note("real_weights", real_weights(device, options.gguf))
        print(found["real_weights"])
    if "steps" not in skipped:
        config = LLAMA_3_8B
        note("bytes_per_second", bandwidth())
        decoder = FusedDecoder(config, RawParts(RandomWeights(config), device.kernels), device, 8192)
        note("made", time.monotonic() - began)
        note("steps", decode_steps(decoder, config, found["bytes_per_second"], 120))
        note("products", parts_of_a_step(decoder))
        if "prefill" not in skipped:
            note("prefill", prefill(decoder, config))


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
    bucket, _ = recorded._recorded[64, 32]
    tokens_64 = decoder.device.record(lambda: decoder.logits(decoder.hidden(bucket.batch, cache)))
    found["step_of_64_ms"] = median_ms(tokens_64, 5, 50)
    return found


if __name__ == "__main__":
    main()
