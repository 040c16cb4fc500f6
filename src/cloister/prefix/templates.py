"""Pages that are public by registration: for all accounts, or for some. No text: a template is token ids."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.errors import SetupError
from cloister.prefix.base import AFTER_PUBLIC, TOKEN_BYTES, Paging
from cloister.prefix.evidence import page_digests

ALL = "all"
MAX_TEMPLATES, MAX_TEMPLATES_BYTES = 1024, 8 << 20
MAX_MARKED = 4_096  # pages of one account; the oldest go first


class Template(Struct, frozen=True, forbid_unknown_fields=True):
    """`tokenizer` is the SHA-256, in hex, of the tokenizer that made the tokens; `accounts` may be ("all",)."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    accounts: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(min_length=1, max_length=256)]
    tokenizer: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    tokens: Annotated[tuple[Annotated[int, Meta(ge=0, lt=AFTER_PUBLIC)], ...], Meta(min_length=1, max_length=1 << 20)]


def read_templates(text: str) -> tuple[Template, ...]:
    """One template a line, as JSON."""
    lines = text.splitlines()
    if len(lines) > MAX_TEMPLATES:
        raise SetupError(f"There are more than {MAX_TEMPLATES} templates.", hint="Register fewer.")
    try:
        return tuple(msgspec.json.decode(line, type=Template) for line in lines)
    except msgspec.DecodeError:
        raise SetupError("A template is not well formed.", hint="Write it with `cloister cache register`.") from None


class Templates:
    """Of the operator (`replace`), and of each account for its own keys (`mark`)."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._registered: dict[bytes, frozenset[str]] = {}
        self._marked: dict[str, OrderedDict[bytes, None]] = {}

    def replace(self, templates: Iterable[Template], page_tokens: int) -> None:
        registered: dict[bytes, frozenset[str]] = {}
        for template in templates:
            tokens = Paging(0, len(template.tokens), page_tokens).pack(template.tokens)
            for page in page_digests(self._secret, tokens, page_tokens * TOKEN_BYTES):
                registered[page] = registered.get(page, frozenset()) | set(template.accounts)
        self._registered = registered

    def mark(self, account: str, pages: Sequence[bytes]) -> None:
        marked = self._marked.setdefault(account, OrderedDict())
        for page in pages[:MAX_MARKED]:
            marked[page] = None
            marked.move_to_end(page)
        while len(marked) > MAX_MARKED:
            marked.popitem(last=False)

    def keep_only(self, accounts: Iterable[str]) -> None:
        self._marked = {account: self._marked[account] for account in accounts if account in self._marked}

    def covers(self, account: str, pages: Sequence[bytes]) -> int:
        """How many of the first pages are registered for this account."""
        marked = self._marked.get(account, OrderedDict[bytes, None]())

        def registered(page: bytes) -> bool:
            return page in marked or not {ALL, account}.isdisjoint(self._registered.get(page, ()))

        return sum(1 for _ in takewhile(registered, pages))
