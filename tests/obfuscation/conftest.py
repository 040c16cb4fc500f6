"""Searches in the word lists are remembered: properties ask for the same few words a thousand times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from cloister.obfuscation.candidates.cells import Cells


@pytest.fixture(scope="session", autouse=True)
def lists_are_searched_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cells, "slot", cache(Cells.slot))
        yield
