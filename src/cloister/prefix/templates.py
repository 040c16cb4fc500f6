"""Pages that are public by registration: for all accounts, or for some. No text: a template is token ids."""

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
    """A request's own mark registers nothing: an account that marks its guess would find what another marked."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._registered: dict[bytes, frozenset[str]] = {}

    def replace(self, templates: Iterable[Template], page_tokens: int) -> None:
        registered: dict[bytes, frozenset[str]] = {}
        for template in templates:
            tokens = Paging(0, len(template.tokens), page_tokens).pack(template.tokens)
            for page in page_digests(self._secret, tokens, page_tokens * TOKEN_BYTES):
                registered[page] = registered.get(page, frozenset()) | set(template.accounts)
        self._registered = registered

    def covers(self, account: str, pages: Sequence[bytes]) -> int:
        """How many of the first pages are registered for this account."""
        named = {ALL, account}
        return sum(1 for _ in takewhile(lambda page: not named.isdisjoint(self._registered.get(page, ())), pages))
