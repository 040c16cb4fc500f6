"""Parts in the memory of a device: copies, made as they are asked for, of parts in the host's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cloister.compute.base import Device
from cloister.compute.layer import Gate, Packed
from cloister.models.decoder import Parts


class PlacedParts(Parts):
    """Products are held once, however often they are asked for. A decoder places its other tensors itself."""

    def __init__(self, source: Parts, device: Device) -> None:
        self._source, self._device = source, device
        self._held: dict[tuple[str, ...], Packed] = {}

    def names(self) -> set[str]:
        return self._source.names()

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.tensor(name)

    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        key = (*weights, *biases)
        if key not in self._held:
            packed = self._source.product(weights, biases, gate)
            bias, scale = (None if each is None else self._device.place(each) for each in (packed.bias, packed.scale))
            self._held[key] = replace(packed, data=self._device.place(packed.data), bias=bias, scale=scale)
        return self._held[key]

    def leftover(self) -> set[str]:
        return self._source.leftover()
