"""No object of a request's JSON has a name twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import InvalidRequest
from cloister.request_fields import refuse_repeated_names

names = st.text(max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values))
def test_what_json_writes_has_no_name_twice(value: dict[str, Any]) -> None:
    refuse_repeated_names(json.dumps(value).encode())


@given(names, values, values, st.lists(st.booleans(), max_size=4))
def test_a_name_twice_is_found_at_any_depth(name: str, first: Any, second: Any, depth: list[bool]) -> None:
    text = f"{{{json.dumps(name)}: {json.dumps(first)}, {json.dumps(name, ensure_ascii=False)}: {json.dumps(second)}}}"
    for in_list in depth:
        text = f"[1, {text}]" if in_list else f'{{"outer": {text}}}'
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no bytes
        return
    with pytest.raises(InvalidRequest, match="given twice") as refused:
        refuse_repeated_names(encoded)
    assert refused.value.param == name


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"a":' * 100_000, b"9" * 5000])
def test_what_is_no_json_is_refused_too(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        refuse_repeated_names(text)


def test_a_name_that_may_be_the_users_words_is_not_said() -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_repeated_names(b'[{"secret": 1, "secret": 2}]', known={"role"})
    assert "secret" not in str(refused.value) and refused.value.param is None and refused.value.__context__ is None
