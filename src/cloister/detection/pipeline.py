"""Tiers 1 and 2 on one text (SafeKV §V-B): a block that a finding touches is private. No requests, no tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from cloister.detection.folding import Folded, fold
from cloister.detection.known_prefixes import SYSTEM_PROMPTS, known_until
from cloister.detection.rules import RuleSet, read_rules, shipped_rules
from cloister.detection.tagger import CATEGORIES, Calibration, Tagger, Tags, shipped_tagger
from cloister.messages.controller_detector import Category, Label


class Finding(NamedTuple):
    start: int
    end: int
    tier: int
    category: Category
    rule: str = ""
    score: float = 1.0


class Verdict(NamedTuple):
    """The tier that decided is 0 without a finding; the score is tier 2's."""

    label: Label
    tier: int
    category: Category
    score: float


@dataclass(frozen=True, slots=True, repr=False)
class Examined:
    verdicts: list[Verdict]
    findings: list[Finding]


class Pipeline:
    """`rules` and `known_prefixes` may be replaced between texts."""

    def __init__(self, rules: RuleSet, tagger: Tagger | None) -> None:
        self.rules = rules
        self.tagger = tagger
        self.calibration = tagger.calibration if tagger else Calibration(0.5, 0.5)
        self.known_prefixes: tuple[str, ...] = SYSTEM_PROMPTS

    def examine(self, text: str, ends: Sequence[int]) -> Examined:
        """Label each block separately; `inherit` adds what follows from the blocks before it."""
        folded = fold(text)
        findings = [
            Finding(*folded.original(match.start, match.end), 1, match.category, match.rule)
            for match in self.rules.find(folded.text)
        ]
        verdicts = [Verdict(Label.PUBLIC, 0, Category.NONE, 0.0)] * len(ends)
        if self.tagger is not None:
            known = known_until(text, self.known_prefixes)
            findings += _tagged(self.tagger.tag(folded.text), folded, ends, self.calibration, verdicts, known)
        for finding in findings:
            if finding.tier == 1:
                for block in blocks_of(finding.start, finding.end, ends):
                    if verdicts[block].tier != 1:  # the first finding names it
                        verdicts[block] = Verdict(Label.PRIVATE, 1, finding.category, verdicts[block].score)
        return Examined(verdicts, sorted(findings))


def _tagged(
    tags: Tags, folded: Folded, ends: Sequence[int], calibration: Calibration, verdicts: list[Verdict], known: int
) -> list[Finding]:
    """Fill in tier 2's verdicts, and list the words above the threshold. Words in known prefixes score 0."""
    if not len(tags.starts) or not len(ends):
        return []
    starts, until = tags.starts, tags.ends
    if folded.origin is not None:
        starts, until = folded.origin[starts], folded.origin[until]
    tags.scores[until <= known] = 0.0
    bounds = np.asarray(ends)
    first = np.minimum(np.searchsorted(bounds, starts, side="right"), len(bounds) - 1)
    last = np.minimum(np.searchsorted(bounds, until - 1, side="right"), len(bounds) - 1)
    best = np.full(len(bounds), -1, dtype=np.int64)
    order = np.argsort(tags.scores, kind="stable")
    best[first[order]] = order  # the last assignment stays: the word with the highest score
    for word in np.flatnonzero(last > first):
        for block in range(first[word] + 1, last[word] + 1):
            if best[block] < 0 or tags.scores[word] > tags.scores[best[block]]:
                best[block] = word
    for block in np.flatnonzero(best >= 0).tolist():
        score, category = float(tags.scores[best[block]]), CATEGORIES[tags.classes[best[block]]]
        if score >= calibration.public:
            label = Label.PRIVATE if score >= calibration.private else Label.UNCERTAIN
            verdicts[block] = Verdict(label, 2, category, score)
        else:
            verdicts[block] = Verdict(Label.PUBLIC, 0, Category.NONE, score)
    named = np.flatnonzero(tags.scores >= calibration.public)
    kinds = [CATEGORIES[kind] for kind in tags.classes[named]]
    spans = zip(starts[named].tolist(), until[named].tolist(), kinds, tags.scores[named].tolist(), strict=True)
    return [Finding(start, end, 2, kind, "", score) for start, end, kind, score in spans]


def blocks_of(start: int, end: int, ends: Sequence[int]) -> range:
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, max(start, end - 1), side="right"))
    return range(min(first, len(ends)), min(last + 1, len(ends)))


def inherit(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What follows a private block is private (§V-D); what follows an uncertain block is at best uncertain."""
    worst, result = Label.PUBLIC, []
    for verdict in verdicts:
        if verdict.label > worst:
            verdict = Verdict(worst, 0, Category.INHERITED, verdict.score)
        worst = min(worst, verdict.label)
        result.append(verdict)
    return result


def even_blocks(text: str, characters: int = 64) -> list[int]:
    """Ends of equal blocks; 64 characters are about the 16 tokens of a block of the KV cache."""
    return [*range(characters, len(text), characters), len(text)] if text else []


@cache
def shipped_pipeline(operator_rules: str = "") -> Pipeline:
    return Pipeline(with_shipped_rules(operator_rules), shipped_tagger())


def with_shipped_rules(text: str) -> RuleSet:
    """RuleBroken if the operator's TOML cannot be used."""
    return RuleSet((*shipped_rules(), *(read_rules(text) if text else ())))
