"""Prompts of many lengths and kinds, made here so that no data file is needed."""

from __future__ import annotations

import random

TOPICS = (
    *("the moon", "a small bakery", "honey bees", "the Roman aqueducts", "a lighthouse keeper", "quantum computers"),
    *("the price of tea", "winter in Norway", "a broken clock", "public libraries", "deep sea fish", "chess openings"),
)
REQUESTS = (
    *("Write a short story about {}.", "Explain {} to a child.", "List five facts about {}.", "Why is {} important?"),
    *("Give three questions a journalist might ask about {}.", "Summarise what is known of {} in two sentences."),
    *("Translate into French: I have read a book about {}.", "def describe():\n    # prints something about {}\n"),
)
PADDING = (
    "The committee met on Tuesday and agreed that the matter should be looked into again before the spring.",
    "In the valley below, the river had risen in the night and carried the old wooden bridge away.",
    "Prices rose by 3.7% in the first quarter, while wages grew by 2.9% over the same period.",
    "She put the letter on the table, looked at it for a while, and then went out to feed the hens.",
)


def make_prompts(count: int, seed: int = 0) -> list[str]:
    """Different texts of a few to a few hundred tokens."""
    draw = random.Random(seed)
    prompts = []
    for number in range(count):
        before = " ".join(draw.choices(PADDING, k=draw.choice((0, 0, 0, 1, 2, 4, 8))))
        prompts.append(f"{before} {number}. {draw.choice(REQUESTS).format(draw.choice(TOPICS))}".strip())
    return prompts
