from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import ProtocolError
from cloister_mpc.messages import Complete, ShareHead, Weight
from cloister_mpc.party.weight_store import WeightStore, file_of

LIMIT = 1 << 20


def weight(name: str, dealing: bytes, dims: tuple[int, ...] = (2, 3)) -> Weight:
    return Weight(ShareHead(name, "float32", dims), b"t" * 32, dealing)


def deal(held: WeightStore, one: Weight, data: bytes = b"x" * 96) -> None:
    held.announce(one)
    assert held.add(data[:50]) is None
    assert held.add(data[50:]) == one.head.name


A, B = weight("w/a", b"a" * 16), weight("w/b", b"b" * 16)
BOTH = Complete("tiny", b"{}", ("w/a", "w/b"))


def test_a_store_in_a_folder_outlives_its_party(tmp_path: Path) -> None:
    held = WeightStore(tmp_path / "held", LIMIT)
    deal(held, A, b"a" * 96)
    deal(held, B, b"b" * 96)
    held.finish(BOTH)
    digest = held.digest
    held.close()
    again = WeightStore(tmp_path / "held", LIMIT)
    assert again.complete == BOTH and again.digest == digest and again.used() == (A, B)
    assert file_of(again.folder, B).read_bytes() == b"b" * 96


def test_a_store_without_a_folder_ends_with_its_party() -> None:
    held = WeightStore(None, LIMIT)
    deal(held, A)
    file = file_of(held.folder, A)
    assert file.stat().st_mode & 0o077 == 0 and held.folder.stat().st_mode & 0o077 == 0
    held.close()
    assert not held.folder.exists()


def test_shares_of_two_dealings_have_two_digests(tmp_path: Path) -> None:
    digests = set()
    for number, dealing in enumerate((b"1" * 16, b"2" * 16)):
        held = WeightStore(tmp_path / str(number), LIMIT)
        deal(held, weight("w/a", dealing))
        held.finish(Complete("tiny", b"{}", ("w/a",)))
        digests.add(held.digest)
    assert len(digests) == 2


def test_what_is_dealt_anew_replaces_the_old_and_is_not_yet_complete(tmp_path: Path) -> None:
    held = WeightStore(tmp_path, LIMIT)
    deal(held, A)
    deal(held, B)
    held.finish(BOTH)
    new = weight("w/a", b"n" * 16)
    deal(held, new)
    assert held.complete is None and not file_of(tmp_path, A).exists()
    held.finish(Complete("tiny", b"{}", ("w/a",)))
    assert held.weights == (new,) and not file_of(tmp_path, B).exists()


def test_a_share_cut_off_is_not_kept(tmp_path: Path) -> None:
    held = WeightStore(tmp_path, LIMIT)
    held.announce(A)
    held.add(b"x" * 50)
    held.abandon()
    assert held.weights == () and not file_of(tmp_path, A).exists()
    with pytest.raises(ProtocolError, match="not here"):
        held.finish(Complete("tiny", b"{}", ("w/a",)))


def test_a_file_that_lost_bytes_is_not_taken_for_a_share(tmp_path: Path) -> None:
    held = WeightStore(tmp_path, LIMIT)
    deal(held, A)
    file_of(tmp_path, A).write_bytes(b"x" * 95)
    assert WeightStore(tmp_path, LIMIT).weights == ()


def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    held = WeightStore(tmp_path, LIMIT)
    held.announce(A)
    with pytest.raises(ProtocolError, match="more bytes"):
        held.add(b"x" * 97)
    with pytest.raises(ProtocolError, match="not announced"):
        WeightStore(tmp_path, LIMIT).add(b"x")


def test_a_store_has_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="limit"):
        WeightStore(tmp_path, LIMIT).announce(weight("w/a", b"a" * 16, (1 << 16, 2)))
