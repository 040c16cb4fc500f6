"""A model's tensors by name, over one or several mapped safetensors files.

Knows nothing of architectures: names and shapes are the caller's affair, tied embeddings too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from cloister.errors import ModelCorrupt, ModelNotFound
from cloister.models.shard import Shard
from cloister.models.source import ModelFolder

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Weights(Mapping[str, torch.Tensor]):
    """Read-only mapping from names to tensors. A tensor is a view of the mapped file: nothing is copied."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = dict(shards)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._shards[name].tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, name: object) -> bool:
        return name in self._shards

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without making the tensor."""
        return self._shards[name].entries[name].shape

    @property
    def total_bytes(self) -> int:
        return sum(shard.entries[name].bytes for name, shard in self._shards.items())


def open_weights(folder: ModelFolder) -> Weights:
    """Map the folder's safetensors."""
    index = folder.path / INDEX_FILE
    if index.is_file():
        return Weights(_indexed_shards(index))
    single = folder.path / SINGLE_FILE
    if not single.is_file():
        raise ModelNotFound(
            f"{folder.path} holds neither {SINGLE_FILE} nor {INDEX_FILE}.",
            hint="Only safetensors are read: fetch that form of the model, or give a GGUF file.",
        )
    shard = Shard.open(single)
    return Weights(dict.fromkeys(shard.entries, shard))


def _indexed_shards(index: Path) -> dict[str, Shard]:
    try:
        places = dict(json.loads(index.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise ModelCorrupt(f"{index} is not an index of safetensors files.", hint="Fetch the model again.") from wrong
    opened: dict[str, Shard] = {}
    shards: dict[str, Shard] = {}
    for name, file_name in places.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelCorrupt(f"{index} points outside its own folder.", hint="Do not use this model.")
        path = index.parent / file_name
        if not path.is_file():
            raise ModelNotFound(f"{path} is named in the index but is not there.", hint="Fetch the model again.")
        shard = opened.get(file_name) or opened.setdefault(file_name, Shard.open(path))
        if name not in shard.entries:
            raise ModelCorrupt(f"{path} lacks the tensor {name}, which the index puts there.")
        shards[name] = shard
    return shards
