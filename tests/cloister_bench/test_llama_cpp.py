from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from cloister.errors import SetupError
from cloister_bench import llama_cpp, peers
from cloister_bench.servers import ServerProcess

KIND = gguf.GGMLQuantizationType


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.Q4_1.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
    values = np.linspace(-1, 1, 64 * 4, dtype=np.float32).reshape(4, 64)
    writer.add_tensor("norm", values[0])
    writer.add_tensor("product", gguf.quants.quantize(values, KIND.Q4_1), raw_dtype=KIND.Q4_1)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "off"), [("Q8_0", 0.01), ("Q4_0", 0.15)])
def test_the_same_model_in_another_format(source: Path, tmp_path: Path, kind: str, off: float) -> None:
    llama_cpp.requantise(source, tmp_path / "made.gguf", llama_cpp.FORMATS[kind])
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "made.gguf")
    fields = ("general.architecture", "llama.block_count", "tokenizer.ggml.tokens")
    assert all(before.fields[name].contents() == after.fields[name].contents() for name in fields)
    old, new = ({each.name: each for each in reader.tensors} for reader in (before, after))
    assert new["product"].tensor_type == KIND[kind] and new["product"].shape.tolist() == [64, 4]
    assert np.array_equal(old["norm"].data, new["norm"].data)
    whole = [gguf.quants.dequantize(each["product"].data, each["product"].tensor_type) for each in (old, new)]
    assert 0 < np.abs(whole[0] - whole[1]).max() < off


def test_a_format_by_name_starts_a_server_of_it(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted once, in an environment with the pinned package."""
    installed: list[tuple[str, ...]] = []

    def install(client: llama_cpp.Client, folder: Path) -> list[str]:
        installed.append(client.packages)
        return [str(folder / "python"), client.program]

    monkeypatch.setattr(llama_cpp, "default_gguf", lambda: source)
    monkeypatch.setattr(llama_cpp, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(llama_cpp.Client, "install", install)
    server = peers.server_of("llama.cpp:Q8_0", None)
    assert isinstance(server, ServerProcess) and server.name == "llama.cpp:Q8_0"
    python, program, weights, port, *_ = server._command
    assert python == str(tmp_path / "peers" / "python") and Path(program).exists()
    assert weights == str(tmp_path / "peers" / "model.Q8_0.gguf") and port == str(server.address.port)
    made = Path(weights).stat().st_mtime_ns
    peers.server_of("llama.cpp:Q8_0", None)
    assert Path(weights).stat().st_mtime_ns == made and installed == [llama_cpp.PACKAGES] * 2
    with pytest.raises(SetupError, match="Q5_K"):
        peers.server_of("llama.cpp:Q5_K", None)
