"""The level `obfuscated` on a GPU machine: the same answers as `open` and `partitioned`, and what λ costs.

    python scripts/gpu_obfuscate.py --json FILE --part steps
    python scripts/gpu_obfuscate.py --json FILE --part node --model FOLDER [--random same --like FOLDER]

Steps: a Llama-3-8B shape with random weights; users with λ+1 prompts each, in arenas of attention processes under MPS,
the common beginning computed and held once. Logits of every row against the same prompt open, bit for bit; and times.
Node: `cloister serve` asked by the `openai` client, tokens and log-probabilities at three levels. Needs the packages of
`cloister` itself.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import gpu_serve
from gpu_check import LLAMA_3_8B, RandomWeights, median_ms, opened_gpu, start_mps, stop_mps

from cloister.compute.gpu.kernels import GpuDevice
from cloister.compute.layout import Chunk, Layout, Remote, Wanted, lay_out
from cloister.engine.graph_runner import ROWS, Bucket
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder

PROMPT, COMMON, ANSWER_BLOCKS = 96, 64, 8
"""Tokens of a prompt, of which so many are before the first secret; blocks for an answer."""
CASES = ((1, 0, 1), (1, 8, 1), (8, 0, 1), (8, 8, 1), (1, 64, 1), (8, 0, 8), (8, 8, 8), (1, 31, 1))
"""Users, λ, attention processes: first those with λ = 0, which is `partitioned`."""
COMPARED, TIMED = 6, 40
WATCHDOG_S = 200


def tokens_of(decoder: FusedDecoder, user: int, variant: int) -> list[int]:
    common = [(13 * user + 7 * t) % decoder.vocabulary for t in range(COMMON)]
    return common + [(17 * user + 11 * variant + 5 * t + 3) % decoder.vocabulary for t in range(PROMPT - COMMON)]


def prefill(decoder: FusedDecoder, cache: Any, tokens: list[int], start: int, blocks: list[int]) -> None:
    decoder.hidden(lay_out([Chunk(tokens[start:], start, blocks)], decoder.queries_per_kv_head), cache)


def stepped(
    decoder: FusedDecoder, cache: Any, chunks: list[Chunk], asker: Any = None, asks: torch.Tensor | None = None
) -> tuple[torch.Tensor, float]:
    """Logits of the first steps, each fed the greatest of the last; and a step's median time, in a service's bucket."""
    rows = next(rows for rows in ROWS if rows >= len(chunks))
    bucket = Bucket(rows, 32, decoder.device.place, asks=asker is not None)
    bucket.fill(replace(lay_out(chunks, decoder.queries_per_kv_head), asks=asks))

    def run() -> torch.Tensor:
        logits = decoder.logits(decoder.hidden(bucket.batch, cache, asker))
        decoder.device.kernels.advance(logits, bucket.batch)
        return logits

    step = decoder.device.record(run)
    logits = torch.stack([step()[: len(chunks)].clone() for _ in range(COMPARED)])
    return logits, median_ms(step, 5, TIMED)


def opened(decoder: FusedDecoder, users: int, variants: int) -> tuple[torch.Tensor, float]:
    """Every prompt whole and alone in its blocks, in one step as far as rows go."""
    each = -(-PROMPT // 16) + ANSWER_BLOCKS
    cache = decoder.device.cache(decoder.cache_shape, users * variants * each)
    layout, chunks = Layout(prompt=PROMPT, rotation=PROMPT), []
    for row in range(users * variants):
        blocks = list(range(row * each, (row + 1) * each))
        prefill(decoder, cache, tokens_of(decoder, *divmod(row, variants)), 0, blocks)
        chunks.append(Chunk([7 + row], PROMPT, blocks, layout, Wanted.LAST))
    return stepped(decoder, cache, chunks)


def obfuscated(decoder: FusedDecoder, users: int, variants: int, lines: list[socket.socket]) -> dict[str, Any]:
    """The same behind links: logits, time, and which rows were late."""
    from cloister.compute.gpu.lending import LentAnswerer, LentCache
    from cloister.compute.gpu.link import GpuAsker
    from cloister.compute.gpu.mailbox import Seats

    shape, count = decoder.cache_shape, len(lines)
    common, own = COMMON // 16, -(-PROMPT // 16) - COMMON // 16
    asker = GpuAsker(decoder, 200, Seats(count, users, variants))
    memories, lent, blocks = asker.export(), [], common + variants * own
    for number, line in enumerate(lines):
        case = {"places": len(range(number, users, count)), "blocks": blocks, "slots": variants}
        case |= {"shape": [shape.layers, shape.kv_heads, shape.dim], "scales": decoder.scales}
        case |= {"queries": decoder.queries_per_kv_head}
        socket.send_fds(line, [json.dumps(case).encode()], [memories[number]])
    arenas = [socket.recv_fds(line, 16, 64)[1] for line in lines]
    for user in range(users):
        cache = LentCache(shape, blocks, arenas[user % count][user // count], variants)
        answerer = LentAnswerer(decoder, cache)
        prefill(decoder, cache, tokens_of(decoder, user, 0)[:COMMON], 0, list(range(common)))
        for variant in range(variants):
            first = common + variant * own
            table = [*range(common), *range(first, first + own)]
            prefill(decoder, cache, tokens_of(decoder, user, variant), COMMON, table)
            answerer.expose(variant, table, start=0, end=PROMPT, rotation=PROMPT)
        lent.append((cache, answerer))
        asker.seat(user, user)
    for memory in (*memories, *(one for each in arenas for one in each)):
        os.close(memory)
    rows = users * variants
    cache = decoder.device.cache(shape, rows * ANSWER_BLOCKS)
    chunks = [
        Chunk(
            [7 + row],
            0,
            range(row * ANSWER_BLOCKS, (row + 1) * ANSWER_BLOCKS),
            Layout(prompt=0, remote=Remote(*divmod(row, variants))),
            Wanted.LAST,
        )
        for row in range(rows)
    ]
    asks = asker.aim(lay_out(chunks, decoder.queries_per_kv_head).remotes, rows)
    logits, ms = stepped(decoder, cache, chunks, asker, asks)
    late = asker.late.nonzero().flatten().tolist()
    for line in lines:
        line.send(b"done")
        line.recv(16)
    for each, _ in lent:
        each._memory.close()
    for mailbox in asker._mailboxes:
        mailbox.close()
    return {"logits": logits, "ms": ms, "late": late}


def steps(found: list[dict[str, Any]], save: Callable[[], None], until: float) -> None:
    processes, lines = [], []
    for _ in range(max(attention for *_, attention in CASES)):
        ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, "--json", "-", "--attention", str(theirs.fileno())]
        processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
        theirs.close()
        ours.settimeout(90)
        lines.append(ours)
    try:
        torch.manual_seed(5)
        device = opened_gpu()
        decoder = FusedDecoder(LLAMA_3_8B, RawParts(RandomWeights(LLAMA_3_8B), device.kernels), device, 8192)
        plain: dict[tuple[int, int], float] = {}
        right: dict[tuple[int, int], tuple[torch.Tensor, float]] = {}
        for users, fakes, attention in CASES:
            variants = fakes + 1
            if time.monotonic() > until:
                break
            if (users, fakes) not in right:
                right[users, fakes] = opened(decoder, users, variants)
            logits, open_ms = right[users, fakes]
            made = obfuscated(decoder, users, variants, lines[:attention])
            if not fakes:
                plain[users, attention] = made["ms"]
            row = {"users": users, "fakes": fakes, "attention": attention, "rows": users * variants}
            row |= {"open_ms": open_ms, "ms": made["ms"], "to_partitioned": made["ms"] / plain[users, attention]}
            row |= {"same_bits": torch.equal(made["logits"], logits), "late": made["late"]}
            found.append(row)
            save()
            print(row, flush=True)
    finally:
        for line in lines:
            line.close()
        for process in processes:
            process.wait(timeout=30)


def be_attention(fd: int) -> None:
    """As gpu_check's, with so many slots for each place."""
    from cloister.compute.base import AttentionShape, CacheShape
    from cloister.compute.gpu.lending import GpuHolder

    link, device = socket.socket(fileno=fd), GpuDevice()
    device.open(waits=True)
    while True:
        message, fds, _, _ = socket.recv_fds(link, 4096, 1)
        if not message:
            return
        case, model = json.loads(message), AttentionShape()
        model.cache_shape, model.queries_per_kv_head = CacheShape(*case["shape"]), case["queries"]
        model.scales = case["scales"]
        holder = GpuHolder(device, model, case["blocks"], case["places"], fds[0], 200, case["slots"])
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


FAKES = 8
VALUES = [["Ann", "Ghent", "May"], *([f"Bo{i}b", f"Lund{i}", f"Day{i}"] for i in range(FAKES))]
"""The real secrets and the substitutes."""
SECRETS = ("My name is {}.", "I live in {}, by the river.", "I was born in {}.")


def prompts(spans: int, user: int) -> tuple[str, str]:
    """A prompt with so many secrets, marked and not."""
    text = f"Letter {user}. Please answer politely. " + " ".join(SECRETS[:spans]) + " What should I see?"
    marked = (f"<redacted>{value}</redacted>" for value in VALUES[0])
    return text.format(*marked), text.format(*VALUES[0])


def node(found: dict[str, Any], url: str, users: int, save: Callable[[], None], until: float) -> None:
    asked = gpu_serve.Asked(url)
    model = asked.client.models.list().data[0].model_dump()
    found["levels"] = [level["id"] for level in model["protection"] if level["enabled"]]

    def said(text: str, level: str, way: dict[str, Any], **more: Any) -> Any:
        began = time.monotonic()
        answer = asked.client.chat.completions.create(
            model=asked.model,
            messages=[{"role": "user", "content": text}],
            extra_body={"protection": level, **more},
            logprobs=True,
            top_logprobs=5,
            **{"max_tokens": 24, "temperature": 0, **way},
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        tokens = [(t.token, t.logprob, [(top.token, top.logprob) for top in t.top_logprobs]) for t in logprobs.content]
        return tokens, time.monotonic() - began

    found |= {"differing": [], "failed": [], "compared": 0, "seconds": {}}
    for kind, way in gpu_serve.WAYS.items():
        for spans in (1, 2, 3):
            given = {"fakes": FAKES, "substitutes": [values[:spans] for values in VALUES[1:]]}
            ways: dict[str, dict[str, Any]] = {"partitioned": {}, "obfuscated": {"obfuscation": given}}
            for level, more in ways.items():
                for count in (1, users):
                    if time.monotonic() > until:
                        return

                    def ask(
                        user: int,
                        spans: int = spans,
                        level: str = level,
                        more: dict[str, Any] = more,
                        way: dict[str, Any] = way,
                    ) -> Any:
                        session = {"session": f"user-{user}"}
                        return said(prompts(spans, user)[level == "partitioned"], level, way, **session, **more)

                    case = f"{level} {kind} {spans} spans {count} users"
                    try:
                        right = [said(prompts(spans, user)[1], "open", way)[0] for user in range(count)]
                        with ThreadPoolExecutor(count) as many:
                            answers = list(many.map(ask, range(count)))
                    except Exception as failure:
                        found["failed"].append(f"{case}: {type(failure).__name__}: {str(failure)[:300]}")
                        continue
                    found["seconds"][case] = max(seconds for _, seconds in answers)
                    for user, (answer, _) in enumerate(answers):
                        found["compared"] += 1
                        if differs := gpu_serve.divergence(answer, right[user]):
                            found["differing"].append({"case": case, "user": user, **differs})
                    save()
        if "sampled" not in found:
            found["sampled"] = sampled(said)


def sampled(said: Callable[..., Any]) -> Any:
    """With substitutes that the vault finds."""
    wish = {"fakes": FAKES, "minimum": 1, "epsilon": 1.0, "candidates": 32}
    try:
        answer, seconds = said(prompts(1, 0)[0], "obfuscated", {}, session="sampled", obfuscation=wish)
        differs = gpu_serve.divergence(answer, said(prompts(1, 0)[1], "open", {})[0])
    except Exception as failure:
        return f"{type(failure).__name__}: {str(failure)[:400]}"
    return {"seconds": seconds, "differs": differs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--part", choices=("steps", "node"), default="steps")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--random")
    parser.add_argument("--like", type=Path)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no more cases then")
    parser.add_argument("--option", action="append", default=[], help="passed on to `cloister serve`")
    parser.add_argument("--attention", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    if options.attention is not None:
        be_attention(options.attention)
        return
    began, found = time.monotonic(), dict[str, Any]()

    def save() -> None:
        found["wall_s"] = time.monotonic() - began
        options.json.write_text(json.dumps(found, indent=1))

    if options.part == "node":
        if options.random:
            gpu_serve.make_random(options.model, options.like, options.random)
        log = options.json.with_suffix(".log")
        try:
            with gpu_serve.served(options.model, log, *options.option) as (url, seconds):
                found["up_s"] = seconds
                node(found, url, options.users, save, began + options.seconds)
        except Exception as failure:
            found["stopped"] = f"{type(failure).__name__}: {str(failure)[:1500]}"
        save()
        print(json.dumps(found)[:6000], flush=True)
    else:  # this process has asked CUDA nothing yet, and will be a client of MPS
        found["steps"] = []
        start_mps()
        try:
            steps(found["steps"], save, began + options.seconds)
        finally:
            stop_mps()


if __name__ == "__main__":
    main()
