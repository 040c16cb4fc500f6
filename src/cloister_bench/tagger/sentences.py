"""Sentences with slots, {name} and the like, and [[…]] around words that identify a person without a name.

Prompts as people write them, forms, logs, code and letters; in several languages. Clean ones beside them.
"""

from __future__ import annotations

from cloister_bench.tagger.words import read_words

WORDS = read_words("sentences")
EN = "\n".join(WORDS["EN"])
LOCAL = WORDS["LOCAL"]
CLEAN = "\n".join(WORDS["CLEAN"])
CAPITALS_THAT_NAME_NOBODY = WORDS["CAPITALS_THAT_NAME_NOBODY"]
