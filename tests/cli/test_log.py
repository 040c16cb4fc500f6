"""`cloister log`, as a shell sees it: a log, its witness and its auditor from nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cloister.transparency.checkpoint import read_checkpoint
from cloister.transparency.note import VerifierKey
from tests.cli.conftest import Run
from tests.transparency.node import manifest


class Node:
    """A log made on the command line, and the files around it."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder, self.log, self.key = run, folder, folder / "log", folder / "log.key"
        made = run("log", "create", str(self.log), "--origin", "log.example", "--key", str(self.key), "--json")
        assert made.exit_code == 0, made.output
        self.vkey = json.loads(made.stdout)["verifier_key"]

    def release(self, number: int, branch: str = "") -> Path:
        file = self.folder / f"release-{number}{branch}.json"
        file.write_bytes(manifest(number, branch=branch))
        return file

    def append(self, number: int, branch: str = "", log: Path | None = None) -> dict[str, object]:
        release = str(self.release(number, branch))
        result = self.run("log", "append", str(log or self.log), release, "--key", str(self.key), "--json")
        assert result.exit_code == 0, result.output
        told: dict[str, object] = json.loads(result.stdout)
        return told

    def witness(self, *more: str, log: Path | None = None):  # type: ignore[no-untyped-def]
        arguments = ("--key", str(self.folder / "w.key"), "--state", str(self.folder / "w"), "--name", "w.example")
        return self.run("log", "witness", str(log or self.log), *arguments, *more)


@pytest.fixture
def node(run: Run, tmp_path: Path) -> Node:
    return Node(run, tmp_path)


def test_a_log_is_made_with_a_key_of_its_own(node: Node) -> None:
    assert node.key.stat().st_mode & 0o777 == 0o600
    assert VerifierKey.parse(node.vkey).name == "log.example"
    again = node.run("log", "create", str(node.log), "--origin", "log.example", "--key", str(node.key))
    assert again.exit_code == 2 and "already" in again.stderr
    second = node.run("log", "create", str(node.folder / "b"), "--origin", "b.example", "--key", str(node.key))
    assert second.exit_code == 2 and "not of b.example" in second.stderr


def test_the_signing_key_does_not_lie_in_the_public_folder(run: Run, tmp_path: Path) -> None:
    inside = tmp_path / "log" / "key"
    result = run("log", "create", str(tmp_path / "log"), "--origin", "log.example", "--key", str(inside))
    assert result.exit_code == 2 and not inside.exists()


def test_a_name_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("log", "create", str(tmp_path / "log"), "--origin", "two words", "--key", str(tmp_path / "key"))
    assert result.exit_code == 1 and not (tmp_path / "key").exists()


def test_releases_are_appended_once(node: Node) -> None:
    assert node.append(1)["index"] == 0
    assert node.append(2) | {"measurement": ""} == {"index": 1, "new": True, "size": 2, "measurement": ""}
    assert node.append(1) | {"measurement": ""} == {"index": 0, "new": False, "size": 2, "measurement": ""}
    spoken = node.run("log", "append", str(node.log), str(node.release(1)), "--key", str(node.key))
    assert "is entry 0 of 2, as before" in spoken.stdout


def test_a_proof_leads_from_append_to_check(node: Node) -> None:
    for number in range(4):
        node.append(number)
    seen = node.folder / "seen"
    shutil.copy(node.log / "checkpoint", seen)
    node.append(4)
    proof = node.folder / "proof.json"
    release = str(node.release(2))
    assert node.run("log", "prove", str(node.log), release, "--since", "4", "--out", str(proof)).exit_code == 0
    printed = node.run("log", "prove", str(node.log), release, "--since", "4")
    assert printed.stdout.strip().encode() == proof.read_bytes()
    check = node.run(
        *("release", "check", release, "--proof", str(proof), "--log-key", node.vkey, "--seen", str(seen), "--json")
    )
    outcomes = {each["name"]: each["outcome"] for each in json.loads(check.stdout)["checks"]}
    assert outcomes.pop("source") == "FAIL"  # what runs here is not that tiny release
    assert set(outcomes.values()) == {"PASS", "SKIP"} and outcomes["log consistency"] == "PASS"


def test_what_is_not_in_the_log_or_was_never_seen_is_not_proved(node: Node) -> None:
    node.append(1)
    missing = node.run("log", "prove", str(node.log), str(node.release(9)))
    assert missing.exit_code == 2 and "cloister log append" in missing.stderr
    future = node.run("log", "prove", str(node.log), str(node.release(1)), "--since", "5")
    assert future.exit_code == 2 and "rolled back" in future.stderr


def test_a_release_is_revoked_and_its_proof_is_no_longer_made(node: Node) -> None:
    measured = str(node.append(1)["measurement"])
    append = ("log", "append", str(node.log), str(node.release(1)), "--key", str(node.key))
    assert node.run(*append, "--expires", "2099-12-31").exit_code == 0
    assert node.run(*append, "--expires", "tomorrow").exit_code != 0
    prove = ("log", "prove", str(node.log), str(node.release(1)))
    assert json.loads(node.run(*prove).stdout)["expires"] == "2099-12-31"
    revoke = ("log", "revoke", str(node.log), measured, "--key", str(node.key))
    assert "entry 2 of 3" in node.run(*revoke).stdout and "as before" in node.run(*revoke).stdout
    assert node.run("log", "revoke", str(node.log), "abc", "--key", str(node.key)).exit_code != 0
    for command in (prove, append):
        result = node.run(*command)
        assert result.exit_code == 2 and "revoked" in result.stderr
    audit = json.loads(node.run("log", "audit", str(node.log), "--json").stdout)
    assert audit["verdict"] == "pass" and audit["claims"]["revoked"] == [measured]


def test_a_witness_signs_and_the_auditor_sees_it(node: Node) -> None:
    node.append(1)
    result = node.witness("--attach", "--json", "--log-key", node.vkey)
    assert result.exit_code == 0, result.output
    witness = json.loads(result.stdout)["witness"]
    assert (node.folder / "w.key").stat().st_mode & 0o777 == 0o600
    trust = ("--log-key", node.vkey, "--witness", witness)
    audit = node.run("log", "audit", str(node.log), *trust, "--json")
    told = json.loads(audit.stdout)
    assert audit.exit_code == 0 and told["verdict"] == "pass" and list(told["claims"]["log_witnesses"]) == ["w.example"]
    node.append(2)  # nobody has signed this yet
    assert node.run("log", "audit", str(node.log), *trust).exit_code == 1
    assert node.run("log", "audit", str(node.log), *trust, "--quorum", "0").exit_code == 0
    bad = node.run("log", "audit", str(node.log), "--log-key", "bad")
    assert bad.exit_code == 1 and "Copy the whole line" in bad.stderr


def test_a_line_from_a_witness_elsewhere_is_attached_if_it_is_one(node: Node) -> None:
    node.append(1)
    copy = node.folder / "copy"
    shutil.copytree(node.log, copy)
    signed = node.witness(log=copy)
    line = node.folder / "cosignature"
    line.write_text(signed.stdout)
    witness = json.loads(node.witness("--json", log=copy).stdout)["witness"]
    attach = ("log", "attach", str(node.log), str(line), "--witness", witness)
    assert node.run(*attach).exit_code == 0
    checkpoint = read_checkpoint((node.log / "checkpoint").read_text())
    assert checkpoint.cosigned_by(VerifierKey.parse(witness)) is not None
    node.append(2)
    late = node.run(*attach)
    assert late.exit_code == 1 and "ask the witness again" in late.stderr


def test_a_fork_shown_to_a_witness_or_auditor_is_caught(node: Node) -> None:
    node.append(1)
    fork = node.folder / "fork"
    shutil.copytree(node.log, fork)
    node.append(2)
    node.append(3)
    node.append(2, "backdoor", log=fork)
    assert node.witness().exit_code == 0
    for log in (fork, node.log):
        seen = node.folder / f"seen-{log.name}"
        shutil.copy(log / "checkpoint", seen)
    refusal = node.witness(log=fork)
    assert refusal.exit_code == 1 and refusal.stdout == "" and "forked or rolled back" in refusal.stderr
    node.append(3, "backdoor", log=fork)
    node.append(4, "backdoor", log=fork)
    assert node.witness(log=fork).exit_code == 1
    audit = node.run("log", "audit", str(fork), "--log-key", node.vkey, "--seen", str(node.folder / "seen-log"))
    assert audit.exit_code == 1 and "FAIL  log consistency" in audit.stdout and "forked" in audit.stdout
    assert node.witness().exit_code == 0  # the honest one goes on


def test_a_log_with_another_key_than_at_first_is_not_witnessed(node: Node, run: Run) -> None:
    node.append(1)
    assert node.witness().exit_code == 0
    impostor = Node(run, node.folder / "impostor")
    refusal = node.witness(log=impostor.log)
    assert refusal.exit_code == 1 and "another key" in refusal.stderr


def test_a_log_that_is_none_is_an_error_without_a_traceback(run: Run, tmp_path: Path) -> None:
    for arguments in (("audit", str(tmp_path)), ("prove", str(tmp_path), str(tmp_path / "r"))):
        result = run("log", *arguments)
        assert result.exit_code == 2 and result.stderr.startswith("Error: ") and "cloister log create" in result.stderr


@pytest.mark.parametrize("command", ["create", "append", "revoke", "prove", "witness", "attach", "audit"])
def test_help_has_examples(run: Run, command: str) -> None:
    result = run("log", command, "--help")
    assert result.exit_code == 0 and f"cloister log {command} releases" in result.stdout
