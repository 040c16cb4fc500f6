"""Client × feature × level: what a program's end means, and what the table makes of it."""

from __future__ import annotations

import ast
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloister.addresses import HttpAddress
from cloister.errors import SetupError
from cloister_bench.clients import client as clients
from cloister_bench.clients.client import CLIENTS, FEATURES, PROGRAMS, Client, attempt
from cloister_bench.clients.table import FIGURES, WORKS, Cells, Plan, Trial, page, tables
from cloister_bench.servers import Server
from cloister_bench.suite.documents import draw_figures

PROGRAM = """
from asked import LEVEL, check, run
def chat(): pass
def stream(): check(LEVEL == "open", "not at this level")
run(globals())
"""


class SilentBars:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    (tmp_path / "asked.py").write_bytes((PROGRAMS / "asked.py").read_bytes())
    (tmp_path / "some.py").write_text(PROGRAM)
    monkeypatch.setattr(clients, "PROGRAMS", tmp_path)
    return Client("some", "some.py")


def test_a_table_says_what_works_and_why_the_rest_does_not(program: Client, tmp_path: Path) -> None:
    results, saved = Cells(Plan(("some",), ("open", "isolated"), ("chat", "stream", "call")), "tiny"), []
    trial: Any = Trial(results, SilentBars(), lambda: saved.append(len(results.cells)))  # type: ignore[arg-type]
    trial.run(Server("fake", HttpAddress.parse("http://127.0.0.1:1")), (program,), tmp_path)
    assert saved == [2, 4, 4] and not results.failed, "it has no `call`"
    works, reasons = tables(results.document())
    assert list(works.rows) == [("some", "chat", "yes", "yes"), ("some", "stream", "yes", "no")]
    assert list(reasons.rows) == [("some", "stream", "isolated", "ValueError: not at this level")]
    assert results.document()["targets"][0]["measured"] == 0.75
    assert page(results.document()).splitlines()[-1] == "|some|✓|✗isolated|–|"
    assert draw_figures(results.document(), tmp_path, FIGURES)[0].stat().st_size > 1000


def test_a_program_that_breaks_or_hangs_does_not_work(program: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(code: str, *features: str) -> dict[str, str]:
        return attempt([sys.executable, "-c", f"import json, sys, time\n{code}"], features, {})

    says = 'print("words"); print(json.dumps({"feature": sys.argv[1], "came_to": "works"}), flush=True)'
    assert tried(says, "chat", "stream") == {"chat": WORKS, "stream": "failed"}, "it ended before the second"
    gone = "ModuleNotFoundError: No module named 'nothing_here'"
    assert tried("import nothing_here", "chat", "stream") == {"chat": gone, "stream": gone}
    monkeypatch.setattr(clients, "_TRY_S", 0.5)
    assert tried("time.sleep(60)", "chat") == {"chat": "no end in 0.5 s"}


def test_a_package_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*command: str) -> None:
        raise SetupError("pip failed")

    monkeypatch.setattr(clients, "_run", absent)
    results = Cells(Plan(("some",), ("open",)), "tiny")
    trial: Any = Trial(results, SilentBars(), lambda: None)  # type: ignore[arg-type]
    trial.run(Server("fake", HttpAddress.parse("http://127.0.0.1:1")), (Client("some", "x.py", ("a==1",)),), tmp_path)
    assert [one["part"] for one in results.failed] == ["some"] and not results.cells


def test_every_client_is_pinned_and_tries_features_that_are_known() -> None:
    assert len({one.name for one in CLIENTS}) == len(CLIENTS) >= 10
    for one in CLIENTS:
        assert all("==" in each or "@" in each[1:] for each in one.packages), asdict(one)
        written = (PROGRAMS / one.program).read_text()
        if one.program.endswith(".py"):
            functions = {node.name for node in ast.parse(written).body if hasattr(node, "name")}
            assert len(functions & set(FEATURES)) >= 2, one.name
        else:
            assert all(f"{feature}: async" in written for feature in FEATURES if feature != "readme")
