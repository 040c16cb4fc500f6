"""`cloister log`, as a shell sees it: a log, its witness and its auditor from nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cloister.transparency.checkpoint import read_checkpoint
from cloister.transparency.keys import VerifierKey
from tests.cli.conftest import Run
from tests.transparency.house import manifest


class House:
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
def house(run: Run, tmp_path: Path) -> House:
    return House(run, tmp_path)


def test_a_log_is_made_with_a_key_of_its_own(house: House) -> None:
    assert house.key.stat().st_mode & 0o777 == 0o600
    assert VerifierKey.parse(house.vkey).name == "log.example"
    again = house.run("log", "create", str(house.log), "--origin", "log.example", "--key", str(house.key))
    assert again.exit_code == 2 and "already" in again.stderr
    second = house.run("log", "create", str(house.folder / "b"), "--origin", "b.example", "--key", str(house.key))
    assert second.exit_code == 2 and "not of b.example" in second.stderr


def test_the_signing_key_does_not_lie_in_the_public_folder(run: Run, tmp_path: Path) -> None:
    inside = tmp_path / "log" / "key"
    result = run("log", "create", str(tmp_path / "log"), "--origin", "log.example", "--key", str(inside))
    assert result.exit_code == 2 and not inside.exists()


def test_a_name_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("log", "create", str(tmp_path / "log"), "--origin", "two words", "--key", str(tmp_path / "key"))
    assert result.exit_code == 1 and not (tmp_path / "key").exists()


def test_releases_are_appended_once(house: House) -> None:
    assert house.append(1)["index"] == 0
    assert house.append(2) | {"measurement": ""} == {"index": 1, "new": True, "size": 2, "measurement": ""}
    assert house.append(1) | {"measurement": ""} == {"index": 0, "new": False, "size": 2, "measurement": ""}
    spoken = house.run("log", "append", str(house.log), str(house.release(1)), "--key", str(house.key))
    assert "is entry 0 of 2, as before" in spoken.stdout


def test_a_proof_leads_from_append_to_check(house: House) -> None:
    for number in range(4):
        house.append(number)
    seen = house.folder / "seen"
    shutil.copy(house.log / "checkpoint", seen)
    house.append(4)
    proof = house.folder / "proof.json"
    release = str(house.release(2))
    assert house.run("log", "prove", str(house.log), release, "--since", "4", "--out", str(proof)).exit_code == 0
    printed = house.run("log", "prove", str(house.log), release, "--since", "4")
    assert printed.stdout.strip().encode() == proof.read_bytes()
    check = house.run(
        *("release", "check", release, "--proof", str(proof), "--log-key", house.vkey, "--seen", str(seen), "--json")
    )
    outcomes = {each["name"]: each["outcome"] for each in json.loads(check.stdout)["checks"]}
    assert outcomes.pop("source") == "FAIL"  # what runs here is not that tiny release
    assert set(outcomes.values()) == {"PASS", "SKIP"} and outcomes["log consistency"] == "PASS"


def test_what_is_not_in_the_log_or_was_never_seen_is_not_proved(house: House) -> None:
    house.append(1)
    missing = house.run("log", "prove", str(house.log), str(house.release(9)))
    assert missing.exit_code == 2 and "cloister log append" in missing.stderr
    future = house.run("log", "prove", str(house.log), str(house.release(1)), "--since", "5")
    assert future.exit_code == 2 and "rolled back" in future.stderr


def test_a_witness_signs_and_the_auditor_sees_it(house: House) -> None:
    house.append(1)
    result = house.witness("--attach", "--json", "--log-key", house.vkey)
    assert result.exit_code == 0, result.output
    witness = json.loads(result.stdout)["witness"]
    assert (house.folder / "w.key").stat().st_mode & 0o777 == 0o600
    trust = ("--log-key", house.vkey, "--witness", witness)
    audit = house.run("log", "audit", str(house.log), *trust, "--json")
    told = json.loads(audit.stdout)
    assert audit.exit_code == 0 and told["verdict"] == "pass" and list(told["claims"]["log_witnesses"]) == ["w.example"]
    house.append(2)  # nobody has signed this yet
    assert house.run("log", "audit", str(house.log), *trust).exit_code == 1
    assert house.run("log", "audit", str(house.log), *trust, "--quorum", "0").exit_code == 0


def test_a_line_from_a_witness_elsewhere_is_attached_if_it_is_one(house: House) -> None:
    house.append(1)
    copy = house.folder / "copy"
    shutil.copytree(house.log, copy)
    signed = house.witness(log=copy)
    line = house.folder / "cosignature"
    line.write_text(signed.stdout)
    witness = json.loads(house.witness("--json", log=copy).stdout)["witness"]
    attach = ("log", "attach", str(house.log), str(line), "--witness", witness)
    assert house.run(*attach).exit_code == 0
    checkpoint = read_checkpoint((house.log / "checkpoint").read_text())
    assert checkpoint.cosigned_by(VerifierKey.parse(witness)) is not None
    house.append(2)
    late = house.run(*attach)
    assert late.exit_code == 1 and "ask the witness again" in late.stderr


def test_a_fork_shown_to_a_witness_or_auditor_is_caught(house: House) -> None:
    house.append(1)
    fork = house.folder / "fork"
    shutil.copytree(house.log, fork)
    house.append(2)
    house.append(3)
    house.append(2, "backdoor", log=fork)
    assert house.witness().exit_code == 0
    for log in (fork, house.log):
        seen = house.folder / f"seen-{log.name}"
        shutil.copy(log / "checkpoint", seen)
    refusal = house.witness(log=fork)
    assert refusal.exit_code == 1 and refusal.stdout == "" and "forked or rolled back" in refusal.stderr
    house.append(3, "backdoor", log=fork)
    house.append(4, "backdoor", log=fork)
    assert house.witness(log=fork).exit_code == 1
    audit = house.run("log", "audit", str(fork), "--log-key", house.vkey, "--seen", str(house.folder / "seen-log"))
    assert audit.exit_code == 1 and "FAIL  log consistency" in audit.stdout and "forked" in audit.stdout
    assert house.witness().exit_code == 0  # the honest one goes on


def test_a_log_with_another_key_than_at_first_is_not_witnessed(house: House, run: Run) -> None:
    house.append(1)
    assert house.witness().exit_code == 0
    impostor = House(run, house.folder / "impostor")
    refusal = house.witness(log=impostor.log)
    assert refusal.exit_code == 1 and "another key" in refusal.stderr


def test_a_log_that_is_none_is_an_error_without_a_traceback(run: Run, tmp_path: Path) -> None:
    for arguments in (("audit", str(tmp_path)), ("prove", str(tmp_path), str(tmp_path / "r"))):
        result = run("log", *arguments)
        assert result.exit_code == 2 and result.stderr.startswith("Error: ") and "cloister log create" in result.stderr


@pytest.mark.parametrize("command", ["create", "append", "prove", "witness", "attach", "audit"])
def test_help_has_examples(run: Run, command: str) -> None:
    result = run("log", command, "--help")
    assert result.exit_code == 0 and f"cloister log {command} releases" in result.stdout
