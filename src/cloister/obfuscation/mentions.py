"""Every mention of a secret is one: in all texts, in all capitals, of all of it or of a part (`parts`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cloister.errors import TagsInvalid
from cloister.obfuscation.parts import cut_shared, link_parts, owners_of
from cloister.obfuscation.tags import Category, Span, TaggedText, add_spans

MAX_SECRETS = 64
"""Of one prompt, however often each is mentioned."""


def add_mentions(texts: Sequence[TaggedText], known: Iterable[str] = ()) -> list[TaggedText]:
    """Every other mention of a secret, in any capitals and in any of the texts, is a secret too; so is a mention of one
    that is `known` from earlier, and a part of a name. TagsInvalid where they are more than `MAX_SECRETS`.

    Whole words only: "Ann" is not mentioned by "Annual". A nickname is not found. A mention that overlaps a mark is one
    secret with it. Marks that share a word are cut (`parts.cut_shared`).
    """
    known = list(known)
    texts = cut_shared(_whole(texts, known), known)
    texts = _whole(texts, known)  # of what was cut off
    owners = owners_of(texts, known)
    return [link_parts(text, owners) for text in texts]


def _whole(texts: Sequence[TaggedText], known: Iterable[str]) -> list[TaggedText]:
    said = [text.text.casefold() for text in texts]
    earlier = (secret.casefold() for secret in known)
    secrets = {secret: Category.FREE for secret in earlier if any(secret in each for each in said)}
    secrets |= {text.secret(span).casefold(): span.category for text in texts for span in text.spans}
    if not secrets:
        return list(texts)
    if len(secrets) > MAX_SECRETS:
        raise TagsInvalid(
            f"There are {len(secrets)} secrets; {MAX_SECRETS} can be hidden in one prompt.",
            hint="Mark fewer, send less at once, or use the level 'isolated'.",
        )
    words = "|".join(re.escape(secret) for secret in sorted(secrets, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)

    def more(text: str) -> Iterable[Span]:
        for found in pattern.finditer(text):
            yield Span(*found.span(), secrets.get(found[0].casefold(), Category.FREE))

    return [add_spans(text, more(text.text)) for text in texts]
