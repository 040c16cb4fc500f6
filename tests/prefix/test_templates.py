"""Registered pages: for all or for some accounts; marked ones for the account that marked them."""

from __future__ import annotations

import pytest

from cloister.errors import SetupError
from cloister.prefix.base import Paging
from cloister.prefix.evidence import page_digests
from cloister.prefix.templates import ALL, MAX_MARKED, Template, Templates, read_templates

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


def test_a_mark_is_for_its_account_alone_and_bounded() -> None:
    templates = registered()
    templates.mark("a", digests(1, 2, 3, 4))
    assert [templates.covers(account, digests(1, 2, 3, 4)) for account in "ab"] == [2, 0]
    for start in range(0, 6 * MAX_MARKED, 1000):
        templates.mark("a", digests(*range(start + 10, start + 1010)))
    assert len(templates._marked["a"]) == MAX_MARKED and templates.covers("a", digests(1, 2)) == 0
    templates.keep_only(("b",))
    assert not templates._marked


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
