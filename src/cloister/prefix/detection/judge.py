"""Tier 3: the serving model judges what is uncertain, with the conversation as context (SafeKV §V-B.3).

Not a chat: one forward pass, as a request for a single token in which nothing but the two answers can win. Both get the
same bias, so the greater of their two logits decides. Whatever else comes back means private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloister.errors import SetupError
from cloister.messages.detector import Label
from cloister.messages.generation import SamplingParams

MAX_CONTEXT_CHARACTERS, MAX_PASSAGE_CHARACTERS = 2000, 600
_BIAS = 100.0
_ANSWERS = ((" Yes", " No"), ("Yes", "No"), (" yes", " no"))

PROMPT = """You protect privacy. A passage is private if it names or identifies a person, or tells something personal,
medical, financial or secret about somebody, alone or together with the conversation before it. Instructions, general
questions, facts and code are not private.

Conversation: How do I sort a list?
Passage: Use the built-in function and pass a key.
Is the passage private? No

Conversation: I have been feeling unwell.
Passage: The clinic in my street called about my results.
Is the passage private? Yes

Conversation: {context}
Passage: {passage}
Is the passage private?"""


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """A request for one token: the prompt's text, and how to choose."""

    text: str
    params: SamplingParams


class Judge:
    """`encode` gives a text's token ids without any added token. It needs a vocabulary in which the answers differ in
    their first token; SetupError if there is none."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        for yes, no in _ANSWERS:
            first, other = encode(yes), encode(no)
            if first and other and first[0] != other[0]:
                self._private, self._public = first[0], other[0]
                return
        raise SetupError("This model's vocabulary has no two answers to tell apart.", hint="Serve without tier 3.")

    def question(self, context: str, passage: str) -> Question:
        """The end of the context and the passage, each on one line: neither can pose as the other."""
        text = PROMPT.format(
            context=_line(context[-MAX_CONTEXT_CHARACTERS:]) or "none", passage=_line(passage[:MAX_PASSAGE_CHARACTERS])
        )
        bias = {self._private: _BIAS, self._public: _BIAS}
        return Question(text, SamplingParams(max_tokens=1, temperature=0.0, logit_bias=bias))

    def label(self, tokens: Sequence[int]) -> Label:
        """What the answer says: public only if it is the one token that says so."""
        return Label.PUBLIC if list(tokens) == [self._public] else Label.PRIVATE


def _line(text: str) -> str:
    return " ".join(text.replace("{", "(").replace("}", ")").split())
