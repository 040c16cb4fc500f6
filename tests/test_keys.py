from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from cloister.addresses import is_loopback
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.errors import KeyExpired, SetupError, Unauthorized
from cloister.keys import KeyRing, key_line, load_keys, new_key


def test_a_new_key_opens_for_its_tenant_only(tmp_path: Path) -> None:
    alice, bob = new_key(), new_key()
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys]\n{key_line(alice, 'alice')}\n{key_line(bob, 'bob')}\n")
    assert alice not in path.read_text()
    keys = load_keys(GatewaySettings(host="0.0.0.0", keys_file=path))
    assert (keys.caller(alice).tenant, keys.caller(bob).tenant) == ("alice", "bob")
    for wrong in (None, "", DEVELOPMENT_KEY, alice + " ", alice.upper(), new_key(), "\ud800"):
        with pytest.raises(Unauthorized):
            keys.caller(wrong)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_the_development_key_works_on_loopback(host: str) -> None:
    assert is_loopback(host)
    assert load_keys(GatewaySettings(host=host)).caller(DEVELOPMENT_KEY).tenant == "development"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.4", "example.org", "", "localhost.evil.org"])
def test_the_development_key_is_refused_elsewhere(host: str) -> None:
    with pytest.raises(SetupError, match="development key is refused"):
        load_keys(GatewaySettings(host=host))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "keys = 3",
        "[keys]",
        "[other]\nx = 1",
        '[keys]\n"sk-plain-key" = "alice"',
        '[keys]\n"sha256:abc" = "alice"',
        f'[keys]\n"sha256:{"g" * 64}" = "alice"',
        f'[keys]\n"sha256:{"a" * 64}" = 7',
        f'[keys]\n"sha256:{"a" * 64}" = ""',
        f'[keys]\n"sha256:{"a" * 64}" = {{ trust_group = "lab" }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", trust_group = "" }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", trustgroup = "lab" }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", expires = "2027-01-31" }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", expires = 9999-12-31 }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", expires = 12:00:00 }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", tokens_a_day = -1 }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", requests_a_day = true }}',
        f'[keys]\n"sha256:{"a" * 64}" = {{ tenant = "alice", tokens_a_day = {2**62} }}',
        "not toml [",
    ],
)
def test_a_doubtful_keys_file_admits_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(SetupError) as refused:
        load_keys(GatewaySettings(keys_file=path))
    assert "sk-plain-key" not in str(refused.value)


def test_a_missing_or_binary_keys_file_admits_nobody(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary", "."):
        with pytest.raises(SetupError):
            load_keys(GatewaySettings(keys_file=tmp_path / name))


def test_an_empty_ring_admits_nobody() -> None:
    with pytest.raises(Unauthorized):
        KeyRing(()).caller(DEVELOPMENT_KEY)


def test_a_trust_group_belongs_to_the_tenant(tmp_path: Path) -> None:
    alice, bob, carol = new_key(), new_key(), new_key()
    path = tmp_path / "keys.toml"
    lines = [key_line(alice, "alice", "lab"), key_line(bob, "bob", "lab"), key_line(carol, "carol")]
    path.write_text("[keys]\n" + "\n".join(lines))
    keys = load_keys(GatewaySettings(keys_file=path))
    owners = [keys.caller(key) for key in (alice, bob, carol)]
    # A tenant without a group trusts nobody.
    assert [(each.tenant, each.trust_group) for each in owners] == [("alice", "lab"), ("bob", "lab"), ("carol", "")]
    path.write_text(path.read_text() + "\n" + key_line(new_key(), "alice", "other"))
    with pytest.raises(SetupError, match="more than one trust group"):
        load_keys(GatewaySettings(keys_file=path))


@pytest.mark.parametrize("tenant", ["", 'a"b', "a\nb", "x" * 65, "-a"])
def test_a_tenants_name_cannot_break_the_file(tenant: str) -> None:
    with pytest.raises(SetupError):
        key_line(new_key(), tenant)


def test_a_key_line_is_toml() -> None:
    (tenant,) = tomllib.loads(key_line(new_key(), "team.one_2-x")).values()
    assert tenant == "team.one_2-x"


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ("2027-01-31", datetime(2027, 2, 1, tzinfo=UTC)),  # the whole day counts
        ("2027-01-31T12:00:00", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
        ("1960-01-01", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_key_counts_until_it_expires_by_the_clock(tmp_path: Path, written: str, end: datetime) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("[keys]\n" + key_line("one", "ann", expires=date(2027, 1, 31)).replace("2027-01-31", written))
    now = [end.timestamp() - 1]
    ring = KeyRing(load_keys(GatewaySettings(keys_file=path)).entries, lambda: now[0])
    assert ring.caller("one").tenant == "ann"
    now[0] += 1
    with pytest.raises(KeyExpired, match="Ask the operator for a new one") as refused:
        ring.caller("one")
    assert refused.value.code == "expired_api_key" and "one" not in refused.value.message.split()


def test_a_tenant_has_one_quota(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    lines = [key_line("one", "ann", tokens_a_day=5), key_line("two", "ann"), key_line("three", "ann", requests_a_day=0)]
    path.write_text("[keys]\n" + "\n".join(lines))
    quotas = [(each.tokens_a_day, each.requests_a_day) for each in load_keys(GatewaySettings(keys_file=path)).entries]
    assert quotas == [(5, None), (None, None), (None, 0)]
    path.write_text(path.read_text() + "\n" + key_line("four", "ann", tokens_a_day=6))
    with pytest.raises(SetupError, match="different tokens_a_day"):
        load_keys(GatewaySettings(keys_file=path))
