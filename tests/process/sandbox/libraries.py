"""Run as a program: what the libraries of a vault do once it is sealed. Prints one line of JSON per library.

A process of its own, as torch must be imported by a process that has one thread.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jinja2
import msgspec
import numpy
import tokenizers
import torch

from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, lay_out
from cloister.models.decoder import Decoder
from cloister.models.load import check_decoder
from tests.models.architectures import CONFIGS, random_decoder
from tests.process.sandbox.node import Setting, attempt_inside

torch.set_num_threads(1)


def use_torch() -> float:
    left = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64)
    return float(torch.nn.functional.linear(left, torch.eye(64)).softmax(-1).argmax(-1).sum())


def use_bfloat16() -> float:
    left = torch.ones(32, 64, dtype=torch.bfloat16)
    return float((left @ left.T).float().mean())


def use_bfloat16_without_onednn() -> float:
    with torch.backends.mkldnn.flags(enabled=False):
        return use_bfloat16()


def use_numpy() -> float:
    left = numpy.ones((200, 200), dtype=numpy.float32)
    return float((left @ left).mean())


def use_messages() -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode({"tokens": [1, 2, 3]}))


words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()


def use_tokenizers() -> object:
    return [words.encode("a b a").ids, [one.ids for one in words.encode_batch(["a b", "b z"] * 40)][1]]


template = jinja2.Environment().from_string("{% for turn in turns %}{{ turn }};{% endfor %}")


def use_jinja() -> str:
    return template.render(turns=["a", "b"])


kernels = NativeKernels(torch.float32, threads=1)
packed = kernels.pack(torch.eye(64))


def use_kernels() -> float:
    return float(kernels.linear(torch.ones(8, 64), packed).sum())


gelu, gelu_tanh = (random_decoder(CONFIGS[name], kernels) for name in ("gpt-neox", "gemma"))
for decoder in (gelu, gelu_tanh):
    check_decoder(decoder)


def _compute(decoder: Decoder) -> bool:
    """More rows than were ever computed here, by torch's own modules between our kernels."""
    cache = HostCache(decoder.cache_shape, 4, decoder.kernels.dtype)
    batch = lay_out([Chunk([1] * 53, 0, range(4))], decoder.queries_per_kv_head)
    return bool(decoder.logits(decoder.hidden(batch, cache)).isfinite().all())


def use_hooked_gelu() -> bool:
    return _compute(gelu)


def use_hooked_gelu_tanh() -> bool:
    return _compute(gelu_tanh)


def take_too_much_in_torch() -> None:
    torch.zeros(1 << 30, dtype=torch.uint8)


def take_too_much_in_numpy() -> None:
    numpy.zeros(1 << 30, dtype=numpy.uint8)


def more_threads_in_torch() -> float:
    torch.set_num_threads(2)
    return float((torch.ones(2000, 2000) @ torch.ones(2000, 2000)).mean())


USES: dict[str, Callable[[], Any]] = {
    use.__name__: use
    for use in (
        *(
            use_torch,
            use_bfloat16,
            use_bfloat16_without_onednn,
            use_numpy,
            use_messages,
            use_tokenizers,
            use_jinja,
            use_kernels,
            use_hooked_gelu,
            use_hooked_gelu_tanh,
        ),
        *(take_too_much_in_torch, take_too_much_in_numpy, more_threads_in_torch),
    )
}


def main() -> None:
    for name, use in USES.items():
        outcome = attempt_inside(lambda _, use=use: use(), Setting())
        line = {"name": name, "result": outcome.result, "error": outcome.error, "signal": outcome.signal}
        print(json.dumps(line | {"others": outcome.others}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
