from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import ProtocolError
from cloister.messages.mpc import Complete, ShareHead, Weight
from cloister.mpc.shelf import Shelf, file_of

LIMIT = 1 << 20


def weight(name: str, dealing: bytes, dims: tuple[int, ...] = (2, 3)) -> Weight:
    return Weight(ShareHead(name, "float32", dims), b"t" * 32, dealing)


def store(shelf: Shelf, one: Weight, data: bytes = b"x" * 96) -> None:
    shelf.announce(one)
    assert shelf.add(data[:50]) is None
    assert shelf.add(data[50:]) == one.head.name


A, B = weight("w/a", b"a" * 16), weight("w/b", b"b" * 16)
BOTH = Complete("tiny", b"{}", ("w/a", "w/b"))


def test_a_shelf_in_a_folder_outlives_its_party(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", "aby3", LIMIT)
    store(shelf, A, b"a" * 96)
    store(shelf, B, b"b" * 96)
    shelf.finish(BOTH)
    digest = shelf.digest
    shelf.close()
    again = Shelf(tmp_path / "shelf", "aby3", LIMIT)
    assert again.complete == BOTH and again.digest == digest and again.used() == (A, B)
    assert file_of(again.folder, B).read_bytes() == b"b" * 96


def test_a_shelf_without_a_folder_ends_with_its_party() -> None:
    shelf = Shelf(None, "aby3", LIMIT)
    store(shelf, A)
    file = file_of(shelf.folder, A)
    assert file.stat().st_mode & 0o077 == 0 and shelf.folder.stat().st_mode & 0o077 == 0
    shelf.close()
    assert not shelf.folder.exists()


def test_shares_of_two_dealings_have_two_digests(tmp_path: Path) -> None:
    digests = set()
    for number, dealing in enumerate((b"1" * 16, b"2" * 16)):
        shelf = Shelf(tmp_path / str(number), "aby3", LIMIT)
        store(shelf, weight("w/a", dealing))
        shelf.finish(Complete("tiny", b"{}", ("w/a",)))
        digests.add(shelf.digest)
    assert len(digests) == 2


def test_what_is_dealt_anew_replaces_the_old_and_is_not_yet_complete(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "aby3", LIMIT)
    store(shelf, A)
    store(shelf, B)
    shelf.finish(BOTH)
    new = weight("w/a", b"n" * 16)
    store(shelf, new)
    assert shelf.complete is None and not file_of(tmp_path, A).exists()
    shelf.finish(Complete("tiny", b"{}", ("w/a",)))
    assert shelf.weights == (new,) and not file_of(tmp_path, B).exists()


def test_a_share_cut_off_is_not_on_the_shelf(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "aby3", LIMIT)
    shelf.announce(A)
    shelf.add(b"x" * 50)
    shelf.abandon()
    assert shelf.weights == () and not file_of(tmp_path, A).exists()
    with pytest.raises(ProtocolError, match="not on the shelf"):
        shelf.finish(Complete("tiny", b"{}", ("w/a",)))


def test_a_file_that_lost_bytes_is_not_taken_for_a_share(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "aby3", LIMIT)
    store(shelf, A)
    file_of(tmp_path, A).write_bytes(b"x" * 95)
    assert Shelf(tmp_path, "aby3", LIMIT).weights == ()


def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "aby3", LIMIT)
    shelf.announce(A)
    with pytest.raises(ProtocolError, match="more bytes"):
        shelf.add(b"x" * 97)
    with pytest.raises(ProtocolError, match="not announced"):
        Shelf(tmp_path, "aby3", LIMIT).add(b"x")


def test_a_shelf_has_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="limit"):
        Shelf(tmp_path, "aby3", LIMIT).announce(weight("w/a", b"a" * 16, (1 << 16, 2)))
