"""`cloister audit` on a whole node with two tenants: nothing fails, and what is not tried takes hardware or root."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloister.attest.policy import Policy
from cloister.audit import doors, machine, same_bits, target, tenants
from cloister.audit.ledger import LEDGER
from cloister.client.verification import examine
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
TAKES_ROOT = {
    row.name for row in LEDGER if getattr(row.attempt, "__module__", "") in (machine.__name__, doors.__name__)
}
FEWER = (
    *((same_bits, "NEIGHBOURS", 2), (same_bits, "LONG_WORDS", 20), (same_bits, "NEIGHBOURS_TOKENS", 4)),
    (machine, "AT_ONCE", 2),
    *((same_bits, "REPEATS", 1), (tenants, "TRIALS", 3), (tenants, "PREFIX_WORDS", 30)),
)
OPTIONS = ("--verify", "sample:0.1", "--prefix-policy", "partition", "--profile", "tenants", "--vault-kv-mib", "64")


AS_ROOT = (
    pytest.mark.release,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a node's processes"),
)


@pytest.mark.parametrize("as_root", [False, pytest.param(True, marks=AS_ROOT)], ids=["user", "root"])
def test_a_good_node_holds_what_it_promises(
    tmp_path: Path,
    short_folder: ModelFolder,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,  # noqa: F811
    as_root: bool,
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
        monkeypatch.setattr(target, "find_controllers", lambda: [server.process.pid] if as_root else [])
        seen = examine(url, Policy(allow_software_tee=True)).verdict.claims
        (tmp_path / "policy.toml").write_text(f'weights = ["{seen["weights"]}"]\n')
        result = run("audit", url, "--policy", str(tmp_path / "policy.toml"), "--allow-software-tee", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert not {name: row["found"] for name, row in rows.items() if row["outcome"] == "FAIL"}
    untried = {name for name, row in rows.items() if row["outcome"] == "NOT TRIED"}
    assert untried == TAKES_HARDWARE | (set() if as_root else TAKES_ROOT), rows
    assert result.exit_code == 3
