"""What tiers 1 and 2 get wrong: `python scripts/tagger_errors.py --shared DIR [--weights TAGGER.npz]`.

Of the clean blocks held back: by set, by what the decisive word looks like and what it was taken for, and which words
do it most often. Of the private blocks passed: by set and type. On the quarter for calibration, so that the test
quarter stays unread.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

from tagger import names  # noqa: E402

from cloister.detection.pipeline import Finding, Pipeline, blocks_of, even_blocks  # noqa: E402
from cloister.detection.rules import RuleSet, shipped_rules  # noqa: E402
from cloister.detection.tagger import Tagger, shipped_tagger  # noqa: E402
from cloister.messages.controller_detector import Label  # noqa: E402
from cloister_bench.detection.data import CALIBRATION, TEST, read_sets  # noqa: E402
from cloister_bench.detection.measure import BLOCK_CHARACTERS, UNKNOWN  # noqa: E402


def kind_of(word: str, before: str) -> str:
    if not word.isascii() and not any("A" <= each.upper() <= "Z" for each in word):
        return "other script"
    if word.isdigit():
        return "digits"
    if not word.isalpha():
        return "sign"
    if word.lower() in names.KNOWN:
        return "known name"
    if word.isupper():
        return "ALL CAPITALS"
    if word[0].isupper():
        return (
            "Capital, sentence begins" if not before.strip() or before.strip()[-1] in ".!?:\n*#-" else "Capital within"
        )
    return "small letters" if word.islower() else "mIxed"


def decisive(findings: list[Finding], start: int, end: int) -> Finding:
    """What held the block back."""
    inside = [each for each in findings if each.start < end and each.end > start]
    return max(inside, key=lambda each: (each.tier == 1, each.score))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--set", help="one set alone")
    parser.add_argument("--words", type=int, default=12, help="examples of each kind")
    arguments = parser.parse_args()
    if arguments.weights:
        with np.load(arguments.weights) as loaded:
            tagger = Tagger(dict(loaded))
    else:
        tagger = shipped_tagger()
    pipeline = Pipeline(RuleSet(shipped_rules()), tagger)
    sets, held, kinds, missed, passed = Counter(), Counter(), Counter(), Counter(), {}
    words: dict[tuple[str, str], Counter[str]] = {}
    for sample in read_sets(arguments.shared):
        if sample.quarter != CALIBRATION or sample.quarter == TEST or arguments.set not in (None, sample.dataset):
            continue
        ends = even_blocks(sample.text, BLOCK_CHARACTERS)
        types: list[set[str]] = [set() for _ in ends]
        for start, end, kind in sample.spans:
            for block in blocks_of(start, end, ends):
                types[block].add(kind)
        examined = pipeline.examine(sample.text, ends)
        for number, (own, verdict) in enumerate(zip(types, examined.verdicts, strict=True)):
            if UNKNOWN in own:
                continue
            start, end = ends[number - 1] if number else 0, ends[number]
            sets[sample.dataset, bool(own)] += 1
            if own and verdict.label is Label.PUBLIC:
                missed[sample.dataset, tuple(sorted(own))] += 1
                passed.setdefault(sample.dataset, []).append(sample.text[start:end].replace("\n", "/"))
            elif not own and verdict.label is not Label.PUBLIC:
                held[sample.dataset] += 1
                found = decisive(examined.findings, start, end)
                word = sample.text[found.start : found.end]
                kind = f"rule {found.rule}" if found.tier == 1 else kind_of(word, sample.text[: found.start][-3:])
                kinds[kind, found.category.name] += 1
                words.setdefault((kind, found.category.name), Counter())[word] += 1
    for (name, private), count in sorted(sets.items()):
        wrong = sum(n for (one, _), n in missed.items() if one == name) if private else held[name]
        what = "private, passed" if private else "clean, held"
        print(f"{name:20} {what:16} {wrong:5} of {count:5}  {wrong / count:.3f}")
    print("\nClean blocks held back, by decisive word:")
    for kind, count in kinds.most_common(40):
        print(
            f"{count:5}  {kind[0]:26} {kind[1]:13}", ", ".join(w for w, _ in words[kind].most_common(arguments.words))
        )
    print("\nPrivate blocks passed:")
    for (name, own), count in missed.most_common(30):
        print(f"{count:5}  {name:12} {' '.join(own)}")
    for name, texts in passed.items():
        print(name, *texts[: 2 * arguments.words], sep="\n    ")


if __name__ == "__main__":
    main()
