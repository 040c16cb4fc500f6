"""How many examples hypothesis draws where the profile's own number is too many or too few (see conftest.py)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

ORDINARY = 25
"""Others are drawn in every run, and a release draws twenty-four times as many."""


def examples(count: int, **more: Any) -> settings:
    """So many in `make test`; for a release as many times more as all other tests get."""
    assert settings.default is not None
    return settings(max_examples=max(count * settings.default.max_examples // ORDINARY, 1), **more)
