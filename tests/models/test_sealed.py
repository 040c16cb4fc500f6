"""Parts in a sealed file: the same decoder to the last bit, no copy, and no trust in a file that was tampered with."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, PretrainedConfig

from cloister.compute.base import Kernels
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.layout import Chunk, Wanted
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.errors import ModelCorrupt, SetupError
from cloister.models.decoder import Decoder, RawParts
from cloister.models.fused import FusedDecoder
from cloister.models.hooked import HookedDecoder
from cloister.models.memory_file import create_memory_file, seal
from cloister.models.sealed import HEADER, MAGIC, VERSION, PartsWriter, SealedParts
from cloister.models.source import suits
from tests.models.architectures import CONFIGS, VOCABULARY, device_of, random_model

Kind = type[FusedDecoder] | type[HookedDecoder]
REFERENCE = ReferenceKernels(torch.float32)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def packed_bytes(kind: Kind, config: PretrainedConfig, weights: dict[str, torch.Tensor], kernels: Kernels) -> bytes:
    fd = create_memory_file("packed")
    writer = PartsWriter(RawParts(weights, kernels), kernels, fd)
    kind(config, writer, device_of(kernels), 512)
    content = os.pread(fd, writer.finish(), 0)
    os.close(fd)
    return content


def opened(content: bytes, kernels: Kernels = REFERENCE) -> SealedParts:
    fd = create_memory_file("opened")
    try:
        os.write(fd, content)
        seal(fd)
        return SealedParts(fd, kernels)
    finally:
        os.close(fd)


def hidden_and_logits(decoder: Decoder) -> tuple[torch.Tensor, torch.Tensor]:
    hidden: list[torch.Tensor] = []
    logits_of = decoder.logits

    def logits(rows: torch.Tensor) -> torch.Tensor:
        hidden.append(rows.clone())
        return logits_of(rows)

    decoder.logits = logits  # type: ignore[method-assign]
    tokens = torch.randint(0, VOCABULARY, (20,), generator=torch.Generator().manual_seed(2)).tolist()
    runner = ModelRunner(decoder, reserve_cache(decoder, 4))
    result = runner.forward([Chunk(tokens, 0, [3, 1], wanted=Wanted.ALL)]).clone()
    return torch.cat(hidden), result


def kinds(name: str, config: PretrainedConfig) -> list[Kind]:
    """What serves this architecture. Hooks know no architecture: of those they do not serve, one is tried with them."""
    if not suits(config):
        return [HookedDecoder]
    return [FusedDecoder, HookedDecoder] if name == "llama" else [FusedDecoder]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_on_sealed_parts_is_the_same_to_the_last_bit(name: str, tied: bool, dtype: torch.dtype) -> None:
    config = CONFIGS[name].__class__.from_dict({**CONFIGS[name].to_dict(), "tie_word_embeddings": tied})
    weights = dict(random_model(config).state_dict())
    native: list[Kernels] = [NativeKernels(dtype, threads=2)] if find_compiler() else []
    for kernels in (*native, ReferenceKernels(dtype)):
        for kind in kinds(name, config):
            expected = hidden_and_logits(kind(config, RawParts(weights, kernels), device_of(kernels), 512))
            parts = opened(packed_bytes(kind, config, weights, kernels), kernels)
            found = hidden_and_logits(kind(config, parts, device_of(kernels), 512))
            assert all(map(torch.equal, found, expected)), (kind, kernels.name)
            assert parts.leftover() == set()


@pytest.mark.parametrize("kind", [FusedDecoder, HookedDecoder])
def test_tied_weights_stored_once_are_found(kind: Kind) -> None:
    config = CONFIGS["llama"]
    weights = dict(random_model(config).state_dict())
    twice = packed_bytes(kind, config, weights, REFERENCE)
    del weights["lm_head.weight"]
    assert packed_bytes(kind, config, weights, REFERENCE) == twice
    assert not opened(twice).has("lm_head.weight") and opened(twice).has("model.embed_tokens.weight")


def test_int8_weights_keep_their_scales() -> None:
    kernels = ReferenceKernels(torch.bfloat16, int8=True)
    config, weights = CONFIGS["qwen2"], dict(random_model(CONFIGS["qwen2"]).state_dict())
    parts = opened(packed_bytes(FusedDecoder, config, weights, kernels), kernels)
    assert parts.joined("lm_head").scale is not None
    expected = hidden_and_logits(FusedDecoder(config, RawParts(weights, kernels), device_of(kernels), 512))
    assert all(map(torch.equal, hidden_and_logits(FusedDecoder(config, parts, device_of(kernels), 512)), expected))


@pytest.fixture(scope="module")
def content() -> bytes:
    config = CONFIGS["llama-with-biases"]
    return packed_bytes(FusedDecoder, config, dict(random_model(config).state_dict()), REFERENCE)


def index_of(content: bytes) -> tuple[int, int, dict[str, Any]]:
    _, _, _, offset, length, _ = HEADER.unpack_from(content)
    return offset, length, msgspec.json.decode(content[offset : offset + length])


def with_index(content: bytes, index: bytes) -> bytes:
    """A file that is consistent in itself, with another index."""
    offset, _, _ = index_of(content)
    header = HEADER.pack(MAGIC, VERSION, 0, offset, len(index), hashlib.sha256(index).digest())
    return header + content[HEADER.size : offset] + index


def test_parts_are_views_that_outlive_the_descriptor_and_nothing_is_said(content: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = opened(content)
    norm, again = parts.tensor("model.norm.weight"), parts.tensor("model.norm.weight")
    assert norm.data_ptr() == again.data_ptr() and norm.data_ptr() % 64 == 0
    large = parts.joined("lm_head").data
    assert large.data_ptr() % 4096 == 0
    expected = large.clone()
    del parts, norm, again
    assert torch.equal(large, expected), "a view alone keeps the mapping alive"


def test_a_mapping_ends_with_its_last_view() -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return maps.read().count("memfd:opened")

    before = mappings()
    config = CONFIGS["llama"]
    parts = opened(packed_bytes(FusedDecoder, config, dict(random_model(config).state_dict()), REFERENCE))
    norm = parts.tensor("model.norm.weight")
    del parts
    assert mappings() == before + 1
    del norm
    assert mappings() == before


@given(st.data())
def test_any_changed_byte_of_header_or_index_is_noticed(content: bytes, data: st.DataObject) -> None:
    offset, length, _ = index_of(content)
    place = data.draw(st.one_of(st.integers(0, HEADER.size - 1), st.integers(offset, offset + length - 1)))
    change = data.draw(st.integers(1, 255))
    changed = bytearray(content)
    changed[place] ^= change
    with pytest.raises(ModelCorrupt):
        opened(bytes(changed))


@given(st.data())
def test_a_file_that_is_cut_off_is_noticed(content: bytes, data: st.DataObject) -> None:
    offset, length, _ = index_of(content)
    with pytest.raises(ModelCorrupt):
        opened(content[: data.draw(st.integers(0, offset + length - 1))])


json_values = st.recursive(
    st.none() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.one_of(st.binary(max_size=200), json_values.map(lambda value: msgspec.json.encode(value))))
def test_an_index_of_anything_else_is_refused(content: bytes, index: bytes) -> None:
    with pytest.raises(ModelCorrupt):
        opened(with_index(content, index))


LIES: dict[str, dict[str, object]] = {
    "beyond the end": {"offset": 2**40},
    "into the index": {"shape": [2**20]},
    "negative": {"offset": -64},
    "in the header": {"offset": 0},
    "not aligned": {"offset": 65},
    "negative size": {"shape": [-1]},
    "overflowing size": {"shape": [2**40, 2**40]},
    "unknown type": {"dtype": "Q4"},
    "not a number": {"offset": "64"},
    "unknown field": {"stride": 1},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("where", ["tensor", "data", "bias"])
def test_an_index_that_lies_is_refused(content: bytes, where: str, lie: dict[str, object]) -> None:
    _, _, index = index_of(content)
    product = next(product for product in index["products"].values() if product["bias"])
    entry = index["tensors"]["model.norm.weight"] if where == "tensor" else product[where]
    opened(with_index(content, msgspec.json.encode(index)))
    entry.update(lie)
    with pytest.raises(ModelCorrupt):
        opened(with_index(content, msgspec.json.encode(index)))


@pytest.mark.parametrize("lie", [{"columns": 10**6}, {"k": 10**6}, {"gate": "relu"}, {"columns": -1}])
def test_a_product_larger_than_its_bytes_is_refused(content: bytes, lie: dict[str, object]) -> None:
    _, _, index = index_of(content)
    index["products"]["lm_head.weight"].update(lie)
    with pytest.raises(ModelCorrupt):
        opened(with_index(content, msgspec.json.encode(index)))


def test_a_configuration_of_other_sizes_is_refused(content: bytes) -> None:
    for other in ({"intermediate_size": 128}, {"num_attention_heads": 4}, {"vocab_size": VOCABULARY + 1}):
        config = LlamaConfig.from_dict({**CONFIGS["llama-with-biases"].to_dict(), **other})
        with pytest.raises(ModelCorrupt, match="configuration"):
            FusedDecoder(config, opened(content), ReferenceDevice(REFERENCE), 512)


def test_parts_for_other_kernels_are_refused(content: bytes) -> None:
    with pytest.raises(SetupError, match="packed for reference/F32"):
        opened(content, ReferenceKernels(torch.bfloat16))


def test_a_part_that_is_not_there_is_named(content: bytes) -> None:
    parts = opened(content)
    with pytest.raises(ModelCorrupt, match=r"no\.such\.weight"):
        parts.joined("no.such")
    with pytest.raises(ModelCorrupt, match=r"model\.nothing"):
        parts.tensor("model.nothing")
    mlp = "model.layers.0.mlp"
    with pytest.raises(ModelCorrupt):
        parts.joined(f"{mlp}.gate_proj", f"{mlp}.up_proj")
    with pytest.raises(ModelCorrupt):
        parts.joined(f"{mlp}.gate_proj", f"{mlp}.up_proj", gate="gelu_tanh")


def test_a_file_that_is_not_sealed_is_not_mapped(content: bytes) -> None:
    fd = create_memory_file("open")
    os.write(fd, content)
    with pytest.raises(SetupError, match="not sealed"):
        SealedParts(fd, REFERENCE)
    os.close(fd)


def test_a_write_through_a_view_ends_the_process(content: bytes) -> None:
    fd = create_memory_file("written")
    os.write(fd, content)
    seal(fd)
    script = (
        "import sys, torch\n"
        "from cloister.compute.reference import ReferenceKernels\n"
        "from cloister.models.sealed import SealedParts\n"
        "norm = SealedParts(int(sys.argv[1]), ReferenceKernels(torch.float32)).tensor('model.norm.weight')\n"
        "print(float(norm.sum()), flush=True)\n"
        "norm[0] = 1\n"
        "print('written')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(fd)], pass_fds=[fd], capture_output=True, text=True)
    os.close(fd)
    assert ran.returncode == -signal.SIGSEGV and len(ran.stdout.splitlines()) == 1
