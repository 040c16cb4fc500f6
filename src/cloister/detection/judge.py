"""Tier 3: the serving model judges uncertain blocks, with the conversation as context (SafeKV §V-B.3).
A question is a request for a single token, biased to two answers. "Public" gets a smaller bias, so it wins only if its
logit is greater by `MARGIN`; any other answer means private. A prompt can talk the judge into "public", but only about
itself, and its user was free to share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cloister.errors import SetupError
from cloister.messages.controller_detector import Label
from cloister.messages.controller_frontend import JudgeForm
from cloister.messages.types import SamplingParams

MAX_CONTEXT, MAX_PASSAGE = 256, 64  # tokens of the conversation before, and of the passage
MARGIN = 2.0  # SmolLM2-135M does not reach it: its answers are guesses (docs/bench/detection.md)
_BIAS = 100.0
_ANSWERS = ((" Yes", " No"), ("Yes", "No"), (" yes", " no"))

BEFORE = """You protect privacy. A passage is private if it names or identifies a person, or tells something personal,
medical, financial or secret about a person, alone or together with the conversation before it. Instructions, general
questions, facts and code are not private.

Conversation: How do I sort a list?
Passage: Use the built-in function and pass a key.
Is the passage private? No

Conversation: I have been feeling unwell.
Passage: The clinic in my street called about my results.
Is the passage private? Yes

Conversation:"""
BETWEEN = "\nPassage:"
AFTER = "\nIs the passage private?"


def form_of(encode: Callable[[str], Sequence[int]]) -> JudgeForm:
    """`encode` adds no special tokens. SetupError if the answers do not differ in their first token."""
    for yes, no in _ANSWERS:
        first, other = encode(yes), encode(no)
        if first and other and first[0] != other[0]:
            before, between, after = (tuple(encode(words)) for words in (BEFORE, BETWEEN, AFTER))
            return JudgeForm(before, between, after, private=first[0], public=other[0])
    raise SetupError("This model's vocabulary has no two answers to tell apart.", hint="Serve without tier 3.")


class Question(NamedTuple):
    tokens: tuple[int, ...]
    params: SamplingParams


class Judge:
    def __init__(self, form: JudgeForm, margin: float = MARGIN) -> None:
        self._form = form
        bias = {form.private: _BIAS, form.public: _BIAS - margin}
        self._params = SamplingParams(max_tokens=1, temperature=0.0, logit_bias=bias)

    def question(self, context: Sequence[int], passage: Sequence[int]) -> Question:
        form = self._form
        tokens = *form.before, *context[-MAX_CONTEXT:], *form.between, *passage[:MAX_PASSAGE], *form.after
        return Question(tokens, self._params)

    def label(self, tokens: Sequence[int]) -> Label:
        """Public only if the answer is exactly the token for public."""
        return Label.PUBLIC if list(tokens) == [self._form.public] else Label.PRIVATE
