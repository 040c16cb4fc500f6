"""A wallet gives each token once, to its owner alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloister.access.tokens import Token
from cloister.access.wallet import NoTokens, Wallet
from cloister.errors import SetupError

KEYS = [(1).to_bytes(32)]


def token(number: int, key: int = 1) -> Token:
    return Token(number.to_bytes(32), bytes(32), key.to_bytes(32), bytes(256))


def test_tokens_come_out_once_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tokens.json"
    assert Wallet(path).add(map(token, range(3))) == 3
    assert [Wallet(path).take(KEYS)[0] for _ in range(3)] == [token(number) for number in range(3)]
    with pytest.raises(NoTokens):
        Wallet(path).take(KEYS)


def test_tokens_of_expired_keys_are_dropped(tmp_path: Path) -> None:
    wallet = Wallet(tmp_path / "tokens.json")
    wallet.add([token(1, key=9), token(2), token(3, key=9)])
    assert wallet.count(KEYS) == 1
    assert wallet.take(KEYS) == (token(2), 0)
    wallet.add([])
    assert wallet.count([*KEYS, (9).to_bytes(32)]) == 0


def test_its_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    Wallet(path).add([token(1)])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(SetupError, match="Others may read"):
        Wallet(path).take(KEYS)


def test_no_token_is_taken_twice_by_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    Wallet(path).add(map(token, range(20)))
    with ThreadPoolExecutor(8) as workers:
        taken = list(workers.map(lambda _: Wallet(path).take(KEYS)[0], range(20)))
    assert sorted(each.nonce for each in taken) == [number.to_bytes(32) for number in range(20)]


def test_a_spoilt_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("{")
    path.chmod(0o600)
    with pytest.raises(SetupError, match="does not decode"):
        Wallet(path).take(KEYS)
