"""What the SDK's errors and ours have in common."""

from __future__ import annotations

import pytest

from cloister.client.openai import ChannelBrokenError, NodeNotVerifiedError
from cloister.errors import ChannelBroken, VerificationFailed


@pytest.mark.parametrize(
    ("both", "ours"), [(ChannelBrokenError, ChannelBroken), (NodeNotVerifiedError, VerificationFailed)]
)
def test_an_error_of_both_families_keeps_our_code(
    both: type[VerificationFailed], ours: type[VerificationFailed]
) -> None:
    """The SDK's class attribute says None; whoever lists codes by class would meet it."""
    assert both.code == ours.code
