"""A whole node without its mitigations: each row of the ledger says FAIL. What is broken is real code, so that an
attempt that passes at a node which keeps nothing of its promise would be found here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloister.attest.policy import Policy
from cloister.audit import target
from cloister.audit.ledger import LEDGER, Absent
from cloister.client.verification import examine
from cloister.keys import key_line
from cloister.models.source import ModelFolder
from tests.audit import breaks
from tests.audit.breaks import Edit
from tests.cli.conftest import Run, run  # noqa: F401
from tests.cloud import TestCloud
from tests.served import running_server
from tests.serving.test_audit import FEWER

BROKEN = {"requests": breaks.OF_REQUESTS, "machine": breaks.OF_THE_MACHINE}
KEYS = {"ann": "sk-of-ann-0123456789", "bob": "sk-of-bob-0123456789"}
OPTIONS = ("--prefix-policy", "partition", "--vault-kv-mib", "64", "--attester", "software")


def test_each_row_is_broken_somewhere() -> None:
    rows = [*breaks.OF_REQUESTS, *breaks.OF_THE_MACHINE, *breaks.ELSEWHERE]
    assert len(rows) == len(set(rows))
    assert set(rows) == {row.name for row in LEDGER if not isinstance(row.attempt, Absent)}


def test_what_is_to_be_broken_is_there() -> None:
    edits = {edit for rows in BROKEN.values() for each in rows.values() for edit in each}
    assert not [edit for edit in edits if not edit.is_possible()]


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a node's processes")
@pytest.mark.parametrize("rows", BROKEN.values(), ids=BROKEN)
def test_without_its_mitigations_a_node_fails_each_row(
    rows: dict[str, tuple[Edit, ...]],
    tmp_path: Path,
    short_folder: ModelFolder,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,  # noqa: F811
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n".join(["[keys]", *(key_line(key, name) for name, key in KEYS.items())]))
    monkeypatch.setenv("PYTHONPATH", str(breaks.write_broken(tmp_path / "source", rows)))
    (tmp_path / "cloud").mkdir()
    words = [*OPTIONS, *TestCloud(tmp_path / "cloud").arguments, "--keys", str(keys), "--model", str(short_folder.path)]
    with running_server(tmp_path / "log", *words) as server:
        url = server.url()
        for module, name, less in FEWER:
            monkeypatch.setattr(module, name, less)
        monkeypatch.setenv("CLOISTER_API_KEY", KEYS["ann"])
        monkeypatch.setenv("CLOISTER_OTHER_API_KEY", KEYS["bob"])
        monkeypatch.setattr(target, "find_controllers", lambda: [server.process.pid])
        assert examine(url, Policy(allow_software_tee=True)).verdict.claims["tee"] == "none"
        (tmp_path / "policy.toml").write_text(f'weights = ["{"00" * 32}"]\n')
        result = run("audit", url, "--policy", str(tmp_path / "policy.toml"), "--allow-software-tee", "--json")
    found = {row["name"]: (row["outcome"], row["found"]) for row in json.loads(result.stdout)["rows"]}
    assert {name: found[name] for name in rows if found[name][0] != "FAIL"} == {}
    assert result.exit_code == 1
