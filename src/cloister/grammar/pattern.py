"""The size of a regex, which its counts multiply: bounded before it is compiled."""

import re

from cloister.grammar.refusal import malformed, too_large

MOST_PATTERN = 4096  # characters
MOST_ADDED = 1024  # by counts
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")  # comments and spaces, which nothing here reads
_ATOM = re.compile(
    r"(?P<count>\{\s*(?P<least>\d*)\s*,?\s*(?P<most>\d*)\s*\})|(?P<open>\()|(?P<close>\))"
    r"|\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)


def check_pattern(pattern: str) -> None:
    """FormRefused for what would become too large."""
    if _VERBOSE.search(pattern):
        raise malformed()
    if len(pattern) > MOST_PATTERN:
        raise too_large(f"A pattern may have {MOST_PATTERN} characters.")
    outer: list[int] = []
    size = last = 0  # of the group, and of its last part
    for atom in _ATOM.finditer(pattern):
        if atom["open"]:
            outer.append(size)
            size = last = 0
        elif atom["close"]:
            last, size = size, (outer.pop() if outer else 0) + size
        elif atom["count"]:
            if max(len(atom["least"]), len(atom["most"])) > 5:
                raise _too_many()
            added = last * (max(1, int(atom["most"] or atom["least"] or 1)) - 1)
            last, size = last + added, size + added
        else:
            last, size = 1, size + 1
        if size > MOST_ADDED + len(pattern):
            raise _too_many()


def _too_many() -> Exception:
    return too_large(f"A pattern's counts may add {MOST_ADDED} characters to it.")
