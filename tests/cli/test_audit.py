"""`cloister audit`: its matrix, its exit code, and that no key is an argument."""

from __future__ import annotations

import json

import pytest

from cloister.audit import ledger
from cloister.audit.finding import Finding, broken, held, not_tried, off
from cloister.audit.ledger import Row
from tests.audit.audited_node import KEY
from tests.audit.conftest import Audited, audited  # noqa: F401
from tests.cli.conftest import Run

FINDINGS = {"held": held("h"), "off": off("o"), "not tried": not_tried("n"), "broken": broken("b")}


def _ledger(*names: str) -> tuple[Row, ...]:
    def finds(found: Finding) -> ledger.Attempt:
        return lambda target: found

    return tuple(Row(name, "S", "a", "m", "t", finds(FINDINGS[name])) for name in names)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("held", "off"), 0),
        (("held", "not tried"), 3),
        (("held", "broken", "not tried"), 1),
    ],
)
def test_its_exit_code_is_the_worst_finding(
    run: Run,
    audited: Audited,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    code: int,
) -> None:
    target = audited()
    monkeypatch.setenv("CLOISTER_API_KEY", KEY)
    monkeypatch.setattr(ledger, "LEDGER", _ledger(*names))
    arguments = ("audit", str(target.address), "--allow-software-tee")
    result = run(*arguments, "--json")
    assert result.exit_code == code
    assert [row["name"] for row in json.loads(result.stdout)["rows"]] == list(names)
    table = run(*arguments)
    assert table.exit_code == code and all(name in table.stdout for name in names)


def test_a_node_that_does_not_answer_is_an_error(run: Run) -> None:
    result = run("audit", "http://127.0.0.1:9", "--allow-software-tee")
    assert result.exit_code == 2 and "does not answer" in result.stderr
