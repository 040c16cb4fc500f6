"""Grammars compiled by llguidance (ADR 19). The library and the vocabulary are loaded once, before a process is sealed
or forked; each answer has one matcher, and no form outlives its request."""

import json
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from cloister.errors import FormRefused
from cloister.grammar.constraint import SPACED, Constraint, hardest_texts, narrowed, read_form
from cloister.grammar.refusal import malformed, too_large

LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=400_000,
    step_max_items=20_000,
    max_lexer_states=10_000,
    max_grammar_size=50_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
"""Of one answer. A form at the limits takes tens of milliseconds to compile and a few MiB."""
_KEYWORDS = frozenset(
    (
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "not", "propertyNames"),
        *("then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "oneOf", "allOf", "multipleOf"),
        *("minProperties", "maxProperties", "pattern", "format", "$ref", "patternProperties"),
    )
)
# Of what the library says, words that are its own, and the keyword that they are about.
_ABOUT = {"oneOf": "oneOf", "Properties only": "minProperties, maxProperties", "regex": "pattern"}
_ABOUT |= {"Unknown format": "format", "circular": "$ref"}
_TRIED = 4
_LIMIT_WORDS = ("fuel", "too complex", "too large", "too big", "too many", "limit", "max is", "unable to determine")


class Words(Protocol):
    """A tokenizer, as far as it is needed here."""

    vocabulary: int

    @property
    def special(self) -> Collection[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class _Vocabulary(NamedTuple):
    of: Words
    tokens: LLTokenizer
    special: frozenset[int]


_known: list[_Vocabulary] = []


class _Spelt:
    """What the library asks of a tokenizer. Its end token is none of the model's: what may end an answer is decided by
    the mask. A special token's name begins with a byte that no text has."""

    bos_token_id = None

    def __init__(self, words: Words) -> None:
        special = frozenset(words.special)
        spelt = [words.token_bytes(token) for token in range(words.vocabulary)]
        self.tokens = [b"\xff" + text if token in special else text for token, text in enumerate(spelt)]
        self.tokens.append(b"\xff<end of the form>")
        self.eos_token_id = words.vocabulary
        self.special_token_ids = [*sorted(special), words.vocabulary]

        self.tokens_of: Callable[[str], list[int]] = lambda _: []

    def __call__(self, text: bytes) -> list[int]:
        """Where a form leaves no choice of text it leaves none of tokens: the longest that fit."""
        return self.tokens_of(text.decode())


def learn(words: Words) -> None:
    """Load the library and this tokenizer's words. Starts no thread; takes 0.2 s for 50,000 words."""
    if _known and _known[0].of is words:
        return
    spelt = _Spelt(words)
    tokens = LLTokenizer(TokenizerWrapper(spelt))
    spelt.tokens_of = tokens.greedy_tokenize
    _known[:] = [_Vocabulary(words, tokens, frozenset(words.special))]


def words() -> _Vocabulary:
    if not _known:
        raise FormRefused("This process has no vocabulary for the answer's form.")
    return _known[0]


def compiled(form: str) -> LLMatcher:
    """FormRefused, without a word of the form, if it cannot be followed."""
    return _matcher(read_form(form))


def _matcher(constraint: Constraint) -> LLMatcher:
    matcher = _followed(constraint)
    if matcher.is_error() and not _is_too_large(matcher.get_error()):
        matcher = _followed(narrowed(constraint, _is_empty))
    if matcher.is_error():
        raise _refusal(matcher.get_error())
    return matcher


def _followed(constraint: Constraint) -> LLMatcher:
    try:
        return LLMatcher(words().tokens, _grammar(constraint), log_level=0, limits=LIMITS)
    except ValueError:
        raise malformed() from None


def _is_empty(schema: dict[str, Any]) -> bool:
    return _followed(Constraint("json_schema", json.dumps(schema))).get_error().startswith("Unsatisfiable schema")


def check(form: str) -> None:
    """FormRefused if it cannot be followed, as far as its first tokens show, and those of texts that are hard."""
    constraint = read_form(form)
    _try(_matcher(constraint))
    for text in hardest_texts(json.loads(constraint.source)) if constraint.kind == "json_schema" else ():
        _try(_matcher(Constraint("json_schema", json.dumps(text))))


def _try(matcher: LLMatcher) -> None:
    for _ in range(_TRIED):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") if not matcher.is_stopped() else 0
        first = (allowed & -allowed).bit_length() - 1
        if first in (-1, words().of.vocabulary):
            break
        matcher.consume_token(first)
    if matcher.is_error():
        raise _refusal(matcher.get_error())


def _grammar(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(constraint.source, defaults=cast(Any, SPACED))
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.source)
    return LLMatcher.grammar_from_lark(constraint.source)


def _refusal(said: str) -> FormRefused:
    """The library's message may quote the form: of it, the names that JSON Schema itself has."""
    if _is_too_large(said):
        return too_large()
    named = sorted({name for name in _KEYWORDS if f'"{name}"' in said} | {_ABOUT[one] for one in _ABOUT if one in said})
    return malformed(f"Of a JSON schema, this is not supported: {', '.join(named)}." if named else None)


def _is_too_large(said: str) -> bool:
    return any(word in said.lower() for word in _LIMIT_WORDS)
