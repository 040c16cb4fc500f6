"""Tier 3: the serving model judges uncertain blocks, with the conversation as context (SafeKV §V-B.3).
A question is a request for a single token, biased to two answers. "Public" gets a smaller bias, so it wins only if its
logit is greater by `MARGIN`; any other answer means private. A prompt can talk the judge into "public", but only about
itself, and its user was free to share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from cloister.errors import SetupError
from cloister.files import read_bounded
from cloister.messages.controller_detector import Label
from cloister.messages.controller_frontend import JudgeForm
from cloister.messages.types import SamplingParams

MAX_CONTEXT, MAX_PASSAGE = 256, 64  # tokens of the conversation before, and of the passage
MARGIN = 2.0  # SmolLM2-135M does not reach it: its answers are guesses (docs/bench/detection.md)
LEAST_AREA = 0.80  # where private and clean answers are normal, half of the clean blocks pass with 12% of the private
LEAST_BLOCKS = 100  # of each kind: the area is then known to about ±0.06
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


Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0)]


class JudgeReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `cloister bench detection --judge` measured of one model: `area` under the curve, with its 95% interval."""

    model: str
    digest: str
    area: Share
    low: Share
    high: Share
    private: Count
    clean: Count
    private_passed: Share  # called public, with `MARGIN`
    clean_passed: Share

    def why_not(self, digest: str) -> str | None:
        """Why a model of this digest may not judge."""
        if self.digest != digest:
            return f"{self.model} was measured, which is another model"
        if min(self.private, self.clean) < LEAST_BLOCKS:
            return f"it was measured on fewer than {LEAST_BLOCKS} private and as many clean blocks"
        if self.area < LEAST_AREA:
            return f"its area under the curve is {self.area:.2f}, and {LEAST_AREA:.2f} is needed (0.5 is guessing)"
        return None


def read_report(path: Path) -> JudgeReport:
    try:
        return msgspec.json.decode(read_bounded(path, 1 << 16), type=JudgeReport)
    except msgspec.MsgspecError:
        hint = "Write it with `cloister bench detection --judge --judge-report FILE`."
        raise SetupError(f"{path} is no report on a judge.", hint=hint) from None


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
