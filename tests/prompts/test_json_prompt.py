"""A prompt as its user wrote it in JSON, read where it is unsealed."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.errors import InvalidRequest
from cloister.prompts.json_prompt import read_given


@pytest.mark.parametrize(
    ("field", "data", "name"),
    [
        ("messages", b'[{"role": "user", "content": "secret one", "content": "secret two"}]', "content"),
        ("messages", b'[{"role": "user", "content": [{"type": "text", "text": "secret", "text": "b"}]}]', "text"),
        ("messages", b'[{"role": "user", "content": "a", "public": false, "public": true}]', "public"),
        ("prompt", b'{"text": "secret", "public": false, "public": true}', "public"),
        ("messages", b'[{"role": "user", "content": "a", "secret": 1, "secret": 2}]', None),
    ],
)
def test_a_field_that_is_given_twice_is_refused(field: Any, data: bytes, name: str | None) -> None:
    with pytest.raises(InvalidRequest, match="given twice") as refused:
        read_given(field, data)
    assert refused.value.param == name and "secret" not in str(refused.value)
