"""One process that hides prompts: `python -m tests.obfuscation.asking STORE [TEXT …]`. Prints, for each text, what went
out, as JSON. Its sampler is fast, and draws other values in every process."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from cloister.obfuscation.entities import Entity
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.store import MemoryStore, Store
from cloister.obfuscation.store_file import FileStore, SubstitutesFile
from cloister.obfuscation.tags import TaggedText
from cloister.obfuscation.variants import Substitutes

FAKES = 7


class RandomNames:
    """Of 10,000 for every word of a secret."""

    def substitutes(
        self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: Collection[str] = ()
    ) -> Substitutes:
        draw = random.SystemRandom()
        words = [
            [[f"Name{one:04d}" for one in draw.sample(range(10_000), FAKES)] for _ in e.secret.split()]
            for e in entities
        ]
        return Substitutes(tuple(tuple(" ".join(w[at] for w in each) for each in words) for at in range(FAKES)))


def store_of(named: str) -> Store:
    return MemoryStore() if named == "none" else FileStore(SubstitutesFile(Path(named)))


def sent(obfuscation: Obfuscation, text: str) -> list[str]:
    """The prompts as they go out, sorted; the text alone if it has no secret."""
    made = obfuscation.obfuscate("/v1/completions", json.dumps({"prompt": text}).encode())
    return [text] if made is None else sorted(json.loads(body)["prompt"] for body in made.bodies)


if __name__ == "__main__":
    asked = Obfuscation(RandomNames(), store=store_of(sys.argv[1]))
    json.dump([sent(asked, text) for text in sys.argv[2:]], sys.stdout)
