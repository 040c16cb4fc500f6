"""Plain English: phrases that a reader has to decode are gone from the sources and the docs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

PHRASES = (
    *("told", "so many", "so much", "so-manieth", "by so much", "whoever", "whomever", "whom", "whosoever"),
    *("of its own", "of their own", "of one's own", "of his own", "of ours", "of theirs", "of another's"),
    *("nobody", "nobody's", "everybody", "everybody's", "anybody", "anybody's", "somebody", "somebody's"),
    *("who asks", "who asked", "who holds", "who speaks", "who waits", "who decodes", "who answers", "who reads"),
    *("who computes", "who runs", "who started", "who may", "who must", "who knows", "who verifies", "who sent"),
    *("who has", "who had", "who can", "who does", "who listens", "those who", "the one who", "anyone who"),
    *("there is not", "there are not", "what there is", "to be had", "is had", "has had", "in company"),
    *("confide", "confides", "confided", "wish", "wishes", "wished", "stranger", "strangers", "hears", "heard"),
    *("says so", "says nothing", "say nothing", "is said", "was said", "says of", "comes of", "come of"),
    *("knows of", "know of", "knows nothing", "know nothing", "nothing of", "to the letter", "for want of"),
    *("alike", "likewise", "as one that", "but for", "any more", "anew", "gave up", "one after another"),
    *("what it says", "what it has", "what it holds", "for itself", "of itself", "nothing but", "as it were"),
    *("thereof", "therein", "whereby", "henceforth", "lest", "hence"),
)
"""The worst of what readers met here (issue 34)."""

BAD = re.compile(r"\b(" + "|".join(map(re.escape, sorted(PHRASES, key=len, reverse=True))) + r")\b")


def texts() -> list[Path]:
    """What a person reads: sources, pages and documents; not the archive of the log."""
    sources = (path for kind in ("*.py", "*.js", "*.html") for path in (ROOT / "src").rglob(kind))
    documents = (
        path for path in ROOT.glob("**/*.md") if not {"archive", ".venv", ".venv-vllm", "artifacts"} & set(path.parts)
    )
    return sorted({*sources, *documents})


def found_in(text: str) -> list[str]:
    """Lines with a phrase of the list. White space counts as one blank, since sentences are wrapped."""
    return [
        f"{text[: hit.start()].count(chr(10)) + 1}: {hit[0]}" for hit in BAD.finditer(re.sub(r"\s", " ", text).lower())
    ]


def test_every_text_is_plain() -> None:
    found = {str(path.relative_to(ROOT)): found_in(path.read_text()) for path in texts()}
    assert len(found) > 400 and not {name: lines for name, lines in found.items() if lines}


def test_a_phrase_is_found_across_a_line_end() -> None:
    assert found_in("The service is\ntold so\nmany tokens.") and not found_in("The service gets n tokens.")
