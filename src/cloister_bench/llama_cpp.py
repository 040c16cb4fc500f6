"""llama.cpp as a peer: the default model in one of its formats, and the command of a server of it."""

from pathlib import Path

import gguf

from cloister.config import cache_folder
from cloister.cores import usable_cores
from cloister.errors import SetupError
from cloister.models.source import default_gguf
from cloister_bench.clients.client import Client

PREFIX = "llama.cpp:"
FORMATS = {name: gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0")}
PACKAGES = ("xllamacpp==2026.10.11549",)
PROGRAM = Path(__file__).parent / "programs" / "llama_cpp_server.py"
SLOTS = 32


def command(name: str) -> list[str]:
    """Of `llama.cpp:FORMAT`, in which {port} is still to be put. Installs and converts what is not there yet."""
    kind = name.removeprefix(PREFIX)
    if kind not in FORMATS:
        raise SetupError(f"llama.cpp is not measured in '{kind}'.", hint=f"Choose {' or '.join(FORMATS)}.")
    folder = cache_folder() / "peers"
    weights = folder / f"{default_gguf().stem.partition('.')[0]}.{kind}.gguf"
    if not weights.exists():
        folder.mkdir(parents=True, exist_ok=True)
        requantise(default_gguf(), weights, FORMATS[kind])
    started = Client("llama.cpp", str(PROGRAM), PACKAGES).install(folder)
    return [*started, str(weights), "{port}", str(usable_cores()), str(SLOTS)]


def requantise(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """The same model with its quantised tensors in this format; what is in whole numbers or floats stays."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    floats = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    for tensor in reader.tensors:
        if tensor.tensor_type in floats:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            whole = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(whole, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)
