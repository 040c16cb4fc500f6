"""Registered pages, for all or for some accounts."""

from __future__ import annotations

import pytest

from cloister.errors import SetupError
from cloister.prefix.base import Paging
from cloister.prefix.public_pages import ALL, Template, Templates, page_digests, read_templates

SECRET = bytes(32)
DIGEST = "0" * 64


def digests(*tokens: int) -> list[bytes]:
    return page_digests(SECRET, Paging(0, len(tokens), 2).pack(tokens), 8)


def registered(*templates: Template) -> Templates:
    made = Templates(SECRET)
    made.replace(templates, 2)
    return made


def test_whole_pages_of_a_template_are_for_the_accounts_it_names() -> None:
    templates = registered(
        Template("one", ("a", "b"), DIGEST, (1, 2, 3, 4, 5)), Template("two", (ALL,), DIGEST, (1, 2))
    )
    asked = digests(1, 2, 3, 4, 5, 6)
    assert [templates.covers(account, asked) for account in "abc"] == [2, 2, 1]
    assert templates.covers("a", digests(3, 4)) == 0, "a template is a beginning"
    templates.replace((), 2)
    assert templates.covers("a", asked) == 0


@pytest.mark.parametrize("line", ["{}", "nonsense", f'{{"name":"x","accounts":[],"tokenizer":"{DIGEST}","tokens":[1]}}',
                                  f'{{"name":"x","accounts":["a"],"tokenizer":"{DIGEST}","tokens":[-1]}}'])  # fmt: skip
def test_what_is_not_a_template_is_refused(line: str) -> None:
    with pytest.raises(SetupError):
        read_templates(line)


def test_the_number_of_templates_is_bounded() -> None:
    line = f'{{"name":"x","accounts":["a"],"tokenizer":"{DIGEST}","tokens":[1]}}'
    assert len(read_templates("\n".join([line] * 1024))) == 1024
    with pytest.raises(SetupError):
        read_templates("\n".join([line] * 1025))
