"""The ledger names files that are there, and an attempt that cannot be made is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.audit import ledger, page
from cloister.audit.finding import Finding, Outcome, held
from cloister.audit.ledger import LEDGER, Absent, Row, audit
from cloister.audit.target import Target
from cloister.errors import ServiceUnavailable
from tests.audit import test_attempts, test_machine
from tests.audit.conftest import Audited

ROOT = Path(__file__).parents[2]
DECK = (
    *("iteration-level batching", "chunked prefill", "prepacked prefill", "tensor parallelism", "pipeline parallelism"),
    *("sequence parallelism", "paging", "disk offloading", "prefix caching", "request migration", "instance flip"),
    *("duplication of weights", "pulling of weights", "disaggregated prefill", "priority scheduling", "profiling"),
    *("scheduling by prediction", "machine-level scheduling", "quantisation", "sparsity and distillation"),
    *("multi-query and grouped-query attention", "snippets of prompts computed ahead", "layer-wise transmission"),
    *("speculation by a draft model", "speculation from the prompt", "speculation from others' answers"),
    "speculation by extra heads",
)
"""Seed 003 §3.1 to §4.3."""


def test_every_row_names_what_is_there() -> None:
    assert {row.name for row in LEDGER} >= set(DECK) and len({row.name for row in LEDGER}) == len(LEDGER)
    assert not [row.name for row in LEDGER if not (ROOT / "src/cloister" / row.mitigation).is_file()]
    assert not [row.name for row in LEDGER if not (ROOT / "tests" / row.test).is_file()]
    assert not [row.name for row in LEDGER if set(row.endangers) - set("SEPTV")]


def test_every_attempt_is_made_to_succeed_in_a_test() -> None:
    """Those of rows that name something absent attempt nothing."""
    tables = (*test_attempts.FLAWS, *test_attempts.PROOFS, *test_machine.ATTEMPTS)
    tried = {*(attempt for attempt, _ in tables), *test_attempts.ALONE, *test_machine.ALONE}
    assert {row.attempt for row in LEDGER if not isinstance(row.attempt, Absent)} == tried


def test_the_page_shows_this_ledger() -> None:
    """If it differs: `python -m cloister.audit.page`."""
    assert page.FILE.read_bytes() == page.written()


def test_the_page_tries_what_takes_no_second_tenant_and_no_root() -> None:
    tried = {row["name"] for row in page.shown() if row["tries"]}
    assert tried >= {"priority scheduling", "keys alone open the API", "no interface that widens access"}


def test_all_five_requirements_have_rows() -> None:
    assert set("SEPTV") == {letter for row in LEDGER for letter in row.endangers}


def test_an_attempt_that_ends_in_an_error_is_no_pass(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(target: Target) -> Finding:
        raise ServiceUnavailable("The node does not answer.")

    tried = []

    def counted(target: Target) -> Finding:
        tried.append(target)
        return held("tried")

    attempts = enumerate((fails, counted, counted))
    rows = tuple(Row(str(number), "S", "a", "m", "t", attempt) for number, attempt in attempts)
    monkeypatch.setattr(ledger, "LEDGER", rows)
    assert [row.finding.outcome for row in audit(audited())] == [Outcome.NOT_TRIED, Outcome.PASS, Outcome.PASS]
    assert len(tried) == 1, "rows that share an attempt share its finding"
