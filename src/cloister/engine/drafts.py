"""Guesses at the next tokens, looked up in the tokens so far (prompt look-up decoding)."""

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2


def propose(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """At most `most` tokens that may come next; none where the last tokens have not occurred before."""
    if most < 1:
        return ()
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        last = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start] == last[0] and tokens[start : start + length] == last:
                return tuple(tokens[start + length : start + length + most])
    return ()
