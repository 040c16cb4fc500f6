"""The issuer: so many tokens a day, keys that change, and the list of keys that all users share."""

from pathlib import Path

import pytest

from cloister.access.issuing import DAY_S, MOST_AT_ONCE, Issuer
from cloister.access.token_keys import TokenKeys
from cloister.access.tokens import PendingToken, Token
from cloister.errors import QueueFull, SetupError, TokenInvalid
from tests.access.vectors import new_token


class Clock:
    def __init__(self) -> None:
        self.now = 20_000.5 * DAY_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def issuer(folder: Path, clock: Clock, per_day: int = 8) -> Issuer:
    return Issuer(folder, "issuer.example", "/token-request", per_day=per_day, clock=clock)


def take(of: Issuer, tenant: str, number: int, clock: Clock) -> list[Token]:
    keys = of.keys
    pending = [PendingToken.draw(keys.current(clock()).key, keys.challenge) for _ in range(number)]
    return [
        each.finish(response)
        for each, response in zip(pending, of.issue(tenant, [p.request for p in pending]), strict=True)
    ]


def test_tokens_count_at_whoever_has_the_list_of_keys(tmp_path: Path, clock: Clock) -> None:
    ours = issuer(tmp_path, clock)
    keys = TokenKeys.decode(ours.keys.encode())
    assert keys.encode() == ours.keys.encode()
    for token in take(ours, "alice", 3, clock):
        keys.check(token, clock())


def test_a_tenant_gets_its_tokens_of_a_day_and_no_more(tmp_path: Path, clock: Clock) -> None:
    ours = issuer(tmp_path, clock)
    take(ours, "alice", 5, clock)
    with pytest.raises(QueueFull) as refused:
        take(ours, "alice", 4, clock)
    assert 0 < refused.value.retry_after <= DAY_S // 2 + 1
    take(ours, "alice", 3, clock)
    take(ours, "bob", 8, clock)
    ours.close()
    again = issuer(tmp_path, clock)  # also after a restart
    with pytest.raises(QueueFull):
        take(again, "alice", 1, clock)
    clock.now += DAY_S
    assert len(take(again, "alice", 8, clock)) == 8


def test_two_issuers_do_not_grant_one_day_twice(tmp_path: Path, clock: Clock) -> None:
    """From another process, too: flock's locks belong to open files."""
    ours = issuer(tmp_path, clock)
    with pytest.raises(SetupError, match="Another issuer"):
        issuer(tmp_path, clock)
    ours.close()
    assert len(take(issuer(tmp_path, clock), "alice", 8, clock)) == 8


def test_keys_change_and_tokens_outlast_the_change_by_a_day(tmp_path: Path, clock: Clock) -> None:
    ours = issuer(tmp_path, clock)
    [token] = take(ours, "alice", 1, clock)
    clock.now += DAY_S
    keys = ours.keys
    assert keys.current(clock()).id != token.key_id
    keys.check(token, clock())
    clock.now += DAY_S
    ours.close()
    for known in (keys, issuer(tmp_path, clock).keys):
        with pytest.raises(TokenInvalid):
            known.check(token, clock())


def test_the_next_key_is_listed_before_it_counts(tmp_path: Path, clock: Clock) -> None:
    ours = issuer(tmp_path, clock)
    before = ours.keys
    clock.now += DAY_S
    [token] = take(ours, "alice", 1, clock)
    before.check(token, clock())


def test_forged_and_foreign_tokens_are_refused(tmp_path: Path, clock: Clock) -> None:
    ours, foreign = issuer(tmp_path / "ours", clock), issuer(tmp_path / "foreign", clock)
    [token] = take(ours, "alice", 1, clock)
    with pytest.raises(TokenInvalid, match="another issuer"):
        ours.keys.check(take(foreign, "alice", 1, clock)[0], clock())
    with pytest.raises(TokenInvalid, match="not signed"):
        ours.keys.check(Token(bytes(32), token.challenge_digest, token.key_id, token.authenticator), clock())
    with pytest.raises(TokenInvalid, match="another issuer"):
        ours.keys.check(new_token(), clock())


def test_a_request_that_is_none_costs_nothing(tmp_path: Path, clock: Clock) -> None:
    ours = issuer(tmp_path, clock)
    for wrong in ([], [b""], [bytes(259)], [bytes(259)] * (MOST_AT_ONCE + 1)):
        with pytest.raises(TokenInvalid):
            ours.issue("alice", wrong)
    assert ours.left("alice") == 8


def test_a_key_that_others_may_read_is_refused(tmp_path: Path, clock: Clock) -> None:
    take(ours := issuer(tmp_path, clock), "alice", 1, clock)
    ours.close()
    for path in tmp_path.glob("key-*.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
    with pytest.raises(SetupError, match="Others may read"):
        _ = issuer(tmp_path, clock).keys


@pytest.mark.parametrize("wrong", [b"", b"{}", b"[]", b'{"issuer-request-uri":"/","token-keys":[]}', b"x" * 70_000])
def test_a_list_of_keys_that_is_none_is_refused(wrong: bytes) -> None:
    with pytest.raises(TokenInvalid):
        TokenKeys.decode(wrong)
