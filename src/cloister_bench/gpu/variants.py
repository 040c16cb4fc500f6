"""Steps of `obfuscated`: every user has λ+1 prompts in slots of one vault, with one beginning. λ = 0 is `partitioned`.
As in steps.py keys and values are drawn at random. What all prompts of a user begin with is held once."""

from collections.abc import Iterator, Sequence

import torch

from cloister.compute.gpu.cache import on_gpu
from cloister.compute.gpu.mailbox import EXPOSED, most_rows
from cloister.compute.layout import lay_out
from cloister.models.decoder import Decoder
from cloister_bench.gpu.attention import AttentionProcesses, partitioned, prompt_blocks
from cloister_bench.gpu.steps import ANSWER_BLOCKS, Recorded, Row, open_chunks, remote_chunks


def tables(variants: int, blocks: int) -> tuple[int, list[list[int]]]:
    """How many blocks a vault has, and those of each of its prompts. Half of a prompt's blocks are common to all."""
    common = blocks // 2
    own = blocks - common
    firsts = (common + variant * own for variant in range(variants))
    return common + variants * own, [[*range(common), *range(first, first + own)] for first in firsts]


def measure_variants(
    decoder: Decoder, processes: AttentionProcesses, count: int, users: int, prompt: int, lambdas: Sequence[int]
) -> Iterator[Row]:
    """A row for each λ, 0 first."""
    most, plain = most_rows(decoder.cache_shape.kv_heads), 0.0
    for fakes in (0, *lambdas):
        rows = users * (fakes + 1)
        if rows > most:
            yield {"lambda": fakes, "not_offered": f"a step that asks has {most} rows at most, not {rows}"}
            continue
        row = _step(decoder, processes, count, users, prompt, fakes + 1)
        plain = plain or row["ms"]
        yield {"lambda": fakes, "processes": count, **row, "ratio": row["ms"] / plain}


def _step(decoder: Decoder, processes: AttentionProcesses, count: int, users: int, prompt: int, variants: int) -> Row:
    rows, place = users * variants, decoder.device.cache
    each, own = tables(variants, prompt_blocks(prompt))
    held = on_gpu(place(decoder.cache_shape, users * each + rows * ANSWER_BLOCKS))
    held._held.normal_()
    blocks = []
    for row in range(rows):
        user, variant = divmod(row, variants)
        answer = users * each + row * ANSWER_BLOCKS
        blocks.append([*(user * each + block for block in own[variant]), *range(answer, answer + ANSWER_BLOCKS)])
    beside = Recorded(decoder, held, open_chunks(rows, prompt, blocks))
    right, open_ms = beside.logits(), beside.ms()
    with partitioned(processes, decoder, count, users, each, max(EXPOSED, variants)) as partition:
        for user, (lent, answerer) in enumerate(partition.vaults):
            on_gpu(lent)._held.copy_(held._held[user * each : (user + 1) * each])
            for variant, table in enumerate(own):
                answerer.expose(variant, table, start=0, end=prompt, rotation=prompt)
        asker, chunks = partition.asker, remote_chunks(users, variants)
        asks = asker.aim(lay_out(chunks, decoder.queries_per_kv_head).remotes, rows)
        cache = on_gpu(place(decoder.cache_shape, rows * ANSWER_BLOCKS))
        asking = Recorded(decoder, cache, chunks, asker, asks)
        same, ms = torch.equal(asking.logits(), right), asking.ms()
        late = sorted(asker.broken())
    return {"rows": rows, "ms": ms, "open_ms": open_ms, "same_bits": same, "late": late}
