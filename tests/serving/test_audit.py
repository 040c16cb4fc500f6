"""`cloister audit` on a whole node with two tenants: nothing fails, and what is not tried takes hardware."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloister.audit import same_bits, tenants
from cloister.keys import key_line
from cloister.models.source import ModelFolder
from tests.cli.conftest import Run, run  # noqa: F401
from tests.served import running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TAKES_HARDWARE = {
    "audit: firmware tables that are not measured",
    "audit: patch level by the node's own word",
    "from the log to the node",
}
FEWER = (
    *((same_bits, "NEIGHBOURS", 2), (same_bits, "LONG_WORDS", 20), (same_bits, "NEIGHBOURS_TOKENS", 4)),
    *((same_bits, "REPEATS", 1), (tenants, "TRIALS", 3), (tenants, "PREFIX_WORDS", 30)),
)
OPTIONS = ("--verify", "sample:0.1", "--prefix-policy", "partition", "--profile", "tenants", "--vault-kv-mib", "64")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a node's processes")
def test_a_good_node_holds_what_it_promises(
    tmp_path: Path,
    short_folder: ModelFolder,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,  # noqa: F811
) -> None:
    keys = {"ann": "sk-of-ann-0123456789", "bob": "sk-of-bob-0123456789"}
    (tmp_path / "keys").write_text("\n".join(["[keys]", *(key_line(key, name) for name, key in keys.items())]))
    options = ("--model", str(short_folder.path), "--keys", str(tmp_path / "keys"), *OPTIONS)
    with running_server(tmp_path / "log", *options) as server:
        url = server.url()
        for module, name, less in FEWER:
            monkeypatch.setattr(module, name, less)
        monkeypatch.setenv("CLOISTER_API_KEY", keys["ann"])
        monkeypatch.setenv("CLOISTER_OTHER_API_KEY", keys["bob"])
        result = run("audit", url, "--allow-software-tee", "--json", "--pid", str(server.process.pid))
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert not {name: row["found"] for name, row in rows.items() if row["outcome"] == "FAIL"}
    assert {name for name, row in rows.items() if row["outcome"] == "NOT TRIED"} == TAKES_HARDWARE, rows
    assert result.exit_code == 3
