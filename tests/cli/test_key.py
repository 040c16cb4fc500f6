import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cloister.config import GatewaySettings
from cloister.keys import load_keys
from tests.cli.conftest import Run


def test_a_new_key_opens_a_server_given_its_line(run: Run, tmp_path: Path) -> None:
    result = run("key", "new", "alice")
    key, line = result.stdout.splitlines()
    file = tmp_path / "keys.toml"
    file.write_text(f"[keys]\n{line}\n")
    assert load_keys(GatewaySettings(host="0.0.0.0", keys_file=file)).caller(key).tenant == "alice"
    assert key not in line and key not in result.stderr


def test_a_key_may_belong_to_a_trust_group(run: Run, tmp_path: Path) -> None:
    key, line = run("key", "new", "alice", "--trust-group", "lab").stdout.splitlines()
    file = tmp_path / "keys.toml"
    file.write_text(f"[keys]\n{line}\n")
    owner = load_keys(GatewaySettings(keys_file=file)).caller(key)
    assert (owner.tenant, owner.trust_group, owner.operator) == ("alice", "lab", False)
    assert run("key", "new", "alice", "--trust-group", 'a" b').exit_code == 2


def test_keys_are_new_each_time(run: Run) -> None:
    assert run("key", "new", "alice").stdout != run("key", "new", "alice").stdout


def test_a_name_that_is_none_is_refused(run: Run) -> None:
    result = run("key", "new", "two words")
    assert result.exit_code == 2 and result.stdout == ""


def test_a_key_is_put_into_a_file_that_may_be_there_already(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new" / "keys.toml"
    keys = [run("key", "new", name, "--into", str(file)).stdout.strip() for name in ("alice", "bob")]
    assert file.stat().st_mode & 0o777 == 0o600
    ring = load_keys(GatewaySettings(host="0.0.0.0", keys_file=file))
    assert [ring.caller(key).tenant for key in keys] == ["alice", "bob"]
    file.write_text("# ours\n[keys] # who may\n\n[other]\nx = 1\n")
    file.chmod(0o640)
    result = run("key", "new", "carol", "--into", str(file))
    assert "kill -HUP PID" in result.stderr and "pkill" not in result.stderr, "one server is told, not all there are"
    key = result.stdout.strip()
    assert load_keys(GatewaySettings(keys_file=file)).caller(key).tenant == "carol"
    assert file.read_text().startswith("# ours\n[keys] # who may\n") and file.stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_used_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[keys\n")
    result = run("key", "new", "alice", "--into", str(file))
    assert result.exit_code == 2 and result.stdout == "" and file.read_text() == "[keys\n"


def test_a_key_may_end_and_have_a_quota(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    quota = ("--tokens-a-day", "1000", "--requests-a-day", "9")
    run("key", "new", "alice", "--expires", "2099-01-31", *quota, "--into", str(file))
    run("key", "new", "bob", "--days", "90", "--into", str(file))
    # The newest line is the first.
    bob, alice = load_keys(GatewaySettings(keys_file=file)).entries
    assert (alice.tokens_a_day, alice.requests_a_day, bob.tokens_a_day) == (1000, 9, None)
    assert alice.expires == datetime(2099, 2, 1, tzinfo=UTC).timestamp() and bob.expires is not None
    left = datetime.fromtimestamp(bob.expires, UTC) - datetime.now(UTC)
    assert timedelta(days=89) < left < timedelta(days=92)
    assert re.search(r"expires = 2099-01-31[,} ]", file.read_text())


def test_a_last_day_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    for words in (("--expires", "soon"), ("--expires", "2020-01-01"), ("--expires", "2099-01-01", "--days", "3")):
        result = run("key", "new", "alice", *words, "--into", str(file))
        assert result.exit_code != 0 and result.stdout == "" and not file.exists(), words
