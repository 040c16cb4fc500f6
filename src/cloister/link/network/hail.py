"""What a server and its outpost must have in common for a vault's answers to be the right ones."""

from __future__ import annotations

import hashlib
import mmap

from cloister.link.shape import LinkShape
from cloister.messages.bridge import Hail
from cloister.messages.generation import VERSION


def digest_of(weights: int) -> bytes:
    """SHA-256 of the sealed weights: model, precision, format and packing at once."""
    with mmap.mmap(weights, 0, prot=mmap.PROT_READ) as content:
        return hashlib.sha256(content).digest()


def hail_of(model: bytes, shape: LinkShape) -> Hail:
    return Hail(VERSION, model, shape.heads, shape.dim, shape.layers, shape.capacity)


def shape_of(hail: Hail) -> LinkShape:
    return LinkShape(hail.heads, hail.dim, hail.layers, hail.capacity)
