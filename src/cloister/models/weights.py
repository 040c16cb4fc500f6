"""Tensors by name, over mapped safetensors files; writes such files without holding all tensors at once."""

import json
import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from cloister.errors import ModelCorrupt, ModelNotFound
from cloister.models.convert import check_files, read_manifest
from cloister.models.source import ModelFolder

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LENGTH = struct.Struct("<Q")
DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool, "U8": torch.uint8},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_shard(path: Path) -> dict[str, torch.Tensor]:
    """The tensors share the file's mapped pages: none is read before it is used."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError, OSError) as wrong:
        message = f"{path} cannot be read: its header does not describe tensors that fit the file."
        raise ModelCorrupt(message, hint="Fetch or convert the model again.") from wrong


class ShardWriter:
    """Tensors come in any order, one at a time, into a file laid out beforehand."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        header, starts, start = {}, {}, 0
        for name, shape in shapes.items():
            end = start + prod(shape) * dtype.itemsize
            header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
            starts[name] = start
            start = end
        encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._data_start = _LENGTH.size + len(encoded)
        self._starts = starts
        self._dtype = dtype
        self.missing = set(shapes)
        self._file = path.open("wb")
        self._file.write(_LENGTH.pack(len(encoded)) + encoded)
        self._file.truncate(self._data_start + start)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        data = tensor.to(self._dtype).contiguous().flatten().view(torch.uint8).numpy()
        self._file.seek(self._data_start + self._starts[name])
        self._file.write(data.data)
        self.missing.discard(name)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def open_weights(folder: ModelFolder) -> dict[str, torch.Tensor]:
    """Views of the mapped files, nothing copied; ModelCorrupt if we converted them and they changed since."""
    if (manifest := read_manifest(folder.path)) is not None:
        check_files(folder.path, manifest, weights=True)
    index, single = folder.path / INDEX_FILE, folder.path / SINGLE_FILE
    if not index.is_file():
        if not single.is_file():
            hint = "Only safetensors are read: fetch that form of the model, or give a GGUF file."
            raise ModelNotFound(f"{folder.path} holds neither {SINGLE_FILE} nor {INDEX_FILE}.", hint=hint)
        return read_shard(single)
    try:
        places = dict(json.loads(index.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise ModelCorrupt(f"{index} is not an index of safetensors files.", hint="Fetch the model again.") from wrong
    opened: dict[str, dict[str, torch.Tensor]] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, file_name in places.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelCorrupt(f"{index} points outside its own folder.", hint="Do not use this model.")
        path = index.parent / file_name
        if not path.is_file():
            raise ModelNotFound(f"{path} is named in the index but is not there.", hint="Fetch the model again.")
        if file_name not in opened:
            opened[file_name] = read_shard(path)
        if name not in opened[file_name]:
            raise ModelCorrupt(f"{path} lacks the tensor {name}, which the index puts there.")
        tensors[name] = opened[file_name][name]
    return tensors
