"""Attempts to see neighbours in one's own answer: batching, chunks and reused pages must change no bit of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from cloister.audit.finding import Finding, broken, held, not_tried
from cloister.audit.target import Reply, Target, random_words, together

NEIGHBOURS, REPEATS = 4, 2
LONG_WORDS, SHORT_WORDS = 90, 12
NEIGHBOURS_TOKENS = 12


def _said(reply: Reply) -> Any:
    """The answer's text and log-probabilities, or None if there is none."""
    if reply.status != 200 or not isinstance(reply.document, dict):
        return None
    [choice] = reply.document["choices"]
    return choice["text"], choice["logprobs"]


def _compare(target: Target, prompts: list[str], meanwhile: Callable[[str], list[Callable[[], Reply]]]) -> Finding:
    """Each prompt alone, and then all at once beside others, at every level that shows log-probabilities."""
    for level in target.plain_levels:
        asked = [partial(target.complete, prompt, level, logprobs=2) for prompt in prompts]
        alone = [_said(ask()) for ask in asked]
        with target.beside(*meanwhile(level)):
            beside = [_said(reply) for _ in range(REPEATS) for reply in together(*asked)]
        if None in alone or None in beside:
            return not_tried(f"At {level} a request was refused.")
        if alone * REPEATS != beside:
            return broken(f"At {level} neighbours changed an answer or its log-probabilities.")
    return held(f"No bit differs at {', '.join(target.plain_levels)}.")


def _neighbours(target: Target, words: int, level: str) -> list[Callable[[], Reply]]:
    tokens = NEIGHBOURS_TOKENS
    return [partial(target.complete, random_words(words), level, tokens=tokens) for _ in range(NEIGHBOURS)]


def batching(target: Target) -> Finding:
    """A short prompt, whose answer is decoded in one batch with others'."""
    return _compare(target, [random_words(SHORT_WORDS)], partial(_neighbours, target, SHORT_WORDS))


def chunked_prefill(target: Target) -> Finding:
    """A long prompt beside long ones: where its chunks end depends on these."""
    return _compare(target, [random_words(LONG_WORDS)], partial(_neighbours, target, LONG_WORDS))


def prepacked_prefill(target: Target) -> Finding:
    """Prompts that arrive together, and may be computed in one pass."""
    return _compare(target, [random_words(SHORT_WORDS + number) for number in range(4)], lambda level: [])


def reused_pages(target: Target) -> Finding:
    """A prompt before and after others took and left the pages that its answer gets."""
    prompt = random_words(SHORT_WORDS)
    for level in target.plain_levels:
        ask = partial(target.complete, prompt, level, logprobs=2)
        before = _said(ask())
        together(*_neighbours(target, LONG_WORDS, level))
        after = _said(ask())
        if before is None or after is None:
            return not_tried(f"At {level} a request was refused.")
        if before != after:
            return broken(f"At {level} an answer shows what its pages held before.")
    return held(f"No bit differs at {', '.join(target.plain_levels)}.")
