import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cloister.transparency.note import SigningKey
from tests.cli.conftest import Run
from tests.client.fake_node import FakeNode, release_in, running


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's memory of logs, the test's own."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with running(FakeNode(release_in(tmp_path / "log"))) as node:
        yield node


def test_a_verified_node_exits_with_0_and_shows_every_check(run: Run, node: FakeNode) -> None:
    result = run("verify", node.url, "--allow-software-tee")
    assert result.exit_code == 0, result.output
    for word in ("report data", "log inclusion", "PASS", "SKIP", "not asked for", node.channel_key.key_id.hex()):
        assert word in result.stdout
    assert "FAIL" not in result.stdout


def test_a_node_that_waits_for_its_weights_key_is_told_from_one_that_serves(run: Run, node: FakeNode) -> None:
    assert "serves nothing yet" not in run("verify", node.url, "--allow-software-tee").stdout
    node.levels = ()
    result = run("verify", node.url, "--allow-software-tee")
    assert result.exit_code == 0 and "serves nothing yet" in result.stdout and "weights release" in result.stdout


def test_what_the_policy_lets_go_is_shown_by_name(run: Run, node: FakeNode, tmp_path: Path) -> None:
    assert node.release is not None
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[log]\nlogs = ["{node.release.log_key}"]\n[snp]\nallow_old_tcb = true\nvmpl = [0, 1]\n')
    arguments = ("verify", node.url, "--allow-software-tee", "--policy", str(policy))
    names = ["--allow-software-tee", "snp.allow_old_tcb", "snp.vmpl 1", "log without witnesses"]
    shown = run(*arguments)
    assert shown.exit_code == 0 and f"allowed by the policy: {', '.join(names)}" in " ".join(shown.stdout.split())
    assert json.loads(run(*arguments, "--json").stdout)["claims"]["relaxations"] == names
    assert "relaxations" in run("verify", node.url).stdout


def test_the_software_attester_exits_with_1_without_the_flag(run: Run, node: FakeNode) -> None:
    result = run("verify", node.url)
    assert result.exit_code == 1 and "software tee" in result.stdout and "Not verified" in result.stdout
    assert "say --allow-software-tee" in result.stdout


def test_a_released_node_without_a_policy_is_answered_with_the_policy_it_needs(
    run: Run, node: FakeNode, tmp_path: Path
) -> None:
    node.release = release_in(tmp_path / "public", key=SigningKey.generate("example.com/releases"))
    result = run("verify", node.url, "--allow-software-tee")
    assert result.exit_code == 1 and "example.com/releases" in result.stdout and "--policy FILE" in result.stdout


def test_a_layer_that_is_missing_is_answered_with_who_can_mend_it(run: Run, node: FakeNode, tmp_path: Path) -> None:
    node.missing_layers = ("memory_lock",)
    assert run("verify", node.url, "--allow-software-tee").exit_code == 0
    policy = tmp_path / "policy.toml"
    policy.write_text("accept_missing_layers = []")
    result = run("verify", node.url, "--allow-software-tee", "--policy", str(policy))
    assert result.exit_code == 1 and "accept_missing_layers" in result.stdout


def test_settings_and_weights_are_shown_and_what_a_policy_pins_is_refused_when_it_changes(
    run: Run, node: FakeNode, tmp_path: Path
) -> None:
    shown = run("verify", node.url, "--allow-software-tee")
    words = " ".join(shown.stdout.split())
    for name in ("settings hash", "weights digest", "log inclusion", "report age", "vaults live on the node itself"):
        assert name in words
    claims = json.loads(run("verify", node.url, "--allow-software-tee", "--json").stdout)["claims"]
    policy = tmp_path / "policy.toml"
    pins = f'weights = ["{claims["weights"]}"]\n[settings]\nhashes = ["{claims["settings_hash"]}"]\nmpc = ["off"]\n'
    policy.write_text(pins)
    arguments = ("verify", node.url, "--allow-software-tee", "--policy", str(policy))
    assert run(*arguments).exit_code == 0
    node.settings = replace(node.settings, mpc="auto")
    refused = run(*arguments)
    assert refused.exit_code == 1 and "is not among the policy's settings.hashes" in " ".join(refused.stdout.split())
    assert "Its operator chose otherwise" in refused.stdout
    node.settings = replace(node.settings, vault_hosts=("10.0.0.2:7000",))
    unseen = run("verify", node.url, "--allow-software-tee")
    assert unseen.exit_code == 1 and "10.0.0.2:7000" in unseen.stdout


def test_json_is_the_whole_document_passed_or_not(run: Run, node: FakeNode) -> None:
    document = json.loads(run("verify", f"{node.url}/v1", "--allow-software-tee", "--json").stdout)
    assert document["verdict"] == "pass" and document["channel_key_id"] == node.channel_key.key_id.hex()
    refused = run("verify", node.url, "--json")
    document = json.loads(refused.stdout)
    assert refused.exit_code == 1 and document["verdict"] == "fail"
    assert {each["name"] for each in document["checks"] if each["outcome"] == "FAIL"} == {"tee", "software tee"}


def test_what_cannot_be_checked_exits_with_3(run: Run, node: FakeNode, tmp_path: Path) -> None:
    """Nothing failed, but nobody handed out the chip's certificates: never a pass."""
    node.release = None
    policy = tmp_path / "policy.toml"
    policy.write_text(f'measurements = ["{"00" * 32}"]\n')
    assert run("verify", node.url, "--allow-software-tee", "--policy", str(policy)).exit_code == 0
    node.attester = Hardware()
    result = run("verify", node.url, "--policy", str(policy))
    assert result.exit_code == 3 and "could not be checked" in result.stdout


class Hardware:
    """A chip whose certificates nobody hands out."""

    tee = "sev-snp"

    def attest(self, report_data: bytes) -> object:
        from cloister.attest.attester import Attestation
        from tests.attest.snp_maker import Chip

        return Attestation("sev-snp", Chip().report(report_data=report_data))


def test_no_answer_and_wrong_use_exit_with_2(run: Run, tmp_path: Path) -> None:
    unreachable = run("verify", "http://127.0.0.1:9", "--json")
    assert unreachable.exit_code == 2 and "Nothing answers" in unreachable.stderr and unreachable.stdout == ""
    assert run("verify", "nonsense").exit_code == 2
    assert run("verify").exit_code == 2
    missing = run("verify", "http://127.0.0.1:9", "--policy", str(tmp_path / "absent.toml"))
    assert missing.exit_code == 2 and "absent.toml" in missing.stderr


def test_a_change_of_the_logs_key_fails_a_later_visit(run: Run, node: FakeNode, tmp_path: Path) -> None:
    assert run("verify", node.url, "--allow-software-tee").exit_code == 0
    node.release = release_in(tmp_path / "other")
    result = run("verify", node.url, "--allow-software-tee")
    assert result.exit_code == 1 and "log key" in result.stdout


def test_a_node_cannot_command_the_terminal(run: Run, node: FakeNode) -> None:
    node.missing_layers = ("\x1b[2J\x07evil",)
    result = run("verify", node.url, "--allow-software-tee")
    assert result.exit_code == 1 and "\x1b[2J" not in result.stdout and "evil" in result.stdout
