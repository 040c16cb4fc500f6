"""How nodes are shown: a line when a state changes, JSON when anything does, and a table on a terminal."""

from __future__ import annotations

import json
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cloister.local_cloud.nodes import LocalNode, State
from cloister.local_cloud.view import View, table


@pytest.fixture
def node() -> LocalNode:
    made = LocalNode("node-1", "http://10.1.2.11:8000", [], {}, Path("log"), "key")
    made.state, made.restarts = State.READY, 0
    return made


@pytest.mark.parametrize("as_json", [False, True])
def test_what_changes_is_said_once(node: LocalNode, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with ExitStack() as stack:
        view = View(stack, as_json=as_json)
        for change in ({}, {}, {"answered": 4}, {"state": State.DRAINING}, {"restarts": 2}):
            vars(node).update(change)
            view.show([node])
            said.append(capsys.readouterr().out)
        view.say("a part's words")
        shown = capsys.readouterr()
    assert [bool(each) for each in said] == [True, False, as_json, True, True]
    assert (shown.err if as_json else shown.out) == "a part's words\n"
    if as_json:
        row = {"node": "node-1", "address": node.url, "state": "draining"}
        assert json.loads(said[-1]) == {**row, "running": 0, "answered": 4, "restarts": 2}
    else:
        assert said[-1] == "node-1  http://10.1.2.11:8000 draining, 4 answered, 2 restarts\n"


def test_a_terminal_gets_a_table(node: LocalNode) -> None:
    node.running, node.answered = 3, 40
    console = Console(width=80, file=StringIO())
    console.print(table([node]))
    head, row = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert head.split() == ["node", "address", "state", "running", "answered", "restarts"]
    assert row.split() == ["node-1", node.url, "ready", "3", "40", "0"]
