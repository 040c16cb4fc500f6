"""Tiles: the layout of C2SP tlog-tiles, and that they always add up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import EvidenceInvalid
from cloister.transparency.merkle import (
    MAX_ENTRY_BYTES,
    Tiles,
    consistency_proof,
    fold,
    inclusion_proof,
    leaf_hash,
    read_bundle,
    tile_path,
    tree_root,
    write_bundle,
)
from tests.examples import examples
from tests.transparency.node import in_memory


def entries(count: int, start: int = 0) -> list[bytes]:
    return [f"entry {number}".encode() for number in range(start, start + count)]


@pytest.mark.parametrize(
    ("index", "width", "path"),
    [
        (0, 256, "tile/0/000"),
        (7, 5, "tile/0/007.p/5"),
        (999, 256, "tile/0/999"),
        (1000, 256, "tile/0/x001/000"),
        (1234067, 256, "tile/0/x001/x234/067"),
        (1234067, 1, "tile/0/x001/x234/067.p/1"),
    ],
)
def test_paths_are_those_of_the_specification(index: int, width: int, path: str) -> None:
    assert tile_path(0, index, width) == path
    assert tile_path("entries", index, width) == path.replace("/0/", "/entries/", 1)


@pytest.mark.slow
def test_a_tree_of_seventy_thousand_has_the_tiles_the_specification_names(tmp_path: Path) -> None:
    made = entries(70_000)
    tiles = Tiles(tmp_path, 0).extended(made)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    levels = {name for name in found if "entries" not in name}
    assert levels == {
        *(f"tile/0/{index:03d}" for index in range(273)),
        "tile/0/273.p/112",
        "tile/1/000",
        "tile/1/001.p/17",
        "tile/2/000.p/1",
    }
    hashes = [leaf_hash(entry) for entry in made]
    assert tiles.root() == fold(hashes)
    memory = in_memory(hashes)
    for index in (0, 255, 256, 65_535, 65_536, 69_999):
        assert tiles.entry(index) == made[index]
        assert inclusion_proof(tiles.subtree, index, 70_000) == inclusion_proof(memory, index, 70_000)
    for old in (1, 255, 256, 257, 65_536, 65_537, 69_999):
        assert tree_root(tiles.subtree, old) == fold(hashes[:old])
        assert consistency_proof(tiles.subtree, old, 70_000) == consistency_proof(memory, old, 70_000)
    assert tiles.find(b"entry 66000") == 66_000 and tiles.find(b"no such entry") is None


@examples(15)
@given(steps=st.lists(st.integers(1, 200), min_size=1, max_size=6))
def test_however_entries_come_the_tiles_are_the_same(
    steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tiles")
    tiles = Tiles(folder, 0)
    sizes = [0]
    for step in steps:
        tiles = tiles.extended(entries(step, tiles.size))
        sizes.append(tiles.size)
    hashes = [leaf_hash(entry) for entry in entries(tiles.size)]
    assert list(tiles.entries()) == entries(tiles.size)
    for size in sizes:  # every tree that ever was can still be read
        earlier = Tiles(folder, size)
        assert earlier.root() == fold(hashes[:size])
        assert list(earlier.entries()) == entries(size)


def test_a_tile_rises_to_the_next_level_only_when_it_is_whole(tmp_path: Path) -> None:
    tiles = Tiles(tmp_path, 0).extended(entries(255))
    assert not (tmp_path / "tile/1").exists()
    tiles = tiles.extended(entries(1, 255))
    assert (tmp_path / "tile/1/000.p/1").read_bytes() == tiles.root()
    assert sorted(path.name for path in (tmp_path / "tile/0").iterdir()) == ["000", "000.p"]


def test_a_partial_tile_may_be_cleared_away_once_the_whole_one_is_there(tmp_path: Path) -> None:
    tiles = Tiles(tmp_path, 0).extended(entries(10)).extended(entries(250, 10))
    for level in ("0", "entries"):
        (tmp_path / f"tile/{level}/000.p/10").unlink()
    earlier = Tiles(tmp_path, 10)
    assert earlier.root() == fold([leaf_hash(entry) for entry in entries(10)])
    assert list(earlier.entries()) == entries(10) and tiles.root() != earlier.root()


def test_what_was_written_beyond_the_tree_is_overwritten(tmp_path: Path) -> None:
    tiles = Tiles(tmp_path, 0).extended(entries(3))
    tiles.extended([b"never in a checkpoint"])
    again = tiles.extended([b"another"])
    assert list(again.entries()) == [*entries(3), b"another"]
    assert again.root() == fold([leaf_hash(entry) for entry in [*entries(3), b"another"]])


@pytest.mark.parametrize("damage", [b"", b"x" * 31, b"x" * 95, b"x" * 97, b"x" * 100_000])
def test_a_damaged_tile_is_refused(tmp_path: Path, damage: bytes) -> None:
    tiles = Tiles(tmp_path, 0).extended(entries(3))
    for level in ("0", "entries"):
        (tmp_path / f"tile/{level}/000.p/3").write_bytes(damage)
    with pytest.raises(EvidenceInvalid):
        tiles.root()
    with pytest.raises(EvidenceInvalid):
        list(tiles.entries())


def test_a_missing_tile_is_named(tmp_path: Path) -> None:
    tiles = Tiles(tmp_path, 0).extended(entries(3))
    (tmp_path / "tile/0/000.p/3").unlink()
    with pytest.raises(EvidenceInvalid, match=r"tile/0/000\.p/3"):
        tiles.root()
    (tmp_path / "tile/0/000.p/3").mkdir()
    with pytest.raises(EvidenceInvalid, match="cannot be read"):
        tiles.root()


def test_places_that_are_not_there(tmp_path: Path) -> None:
    tiles = Tiles(tmp_path, 0).extended(entries(3))
    for wrong in (-1, 3, 10**30):
        with pytest.raises(EvidenceInvalid):
            tiles.entry(wrong)
    for level, index in ((0, 3), (2, 0), (9, 0)):
        with pytest.raises(EvidenceInvalid):
            tiles.subtree(level, index)


def test_an_entry_has_its_limit(tmp_path: Path) -> None:
    largest = bytes(MAX_ENTRY_BYTES)
    assert list(Tiles(tmp_path, 0).extended([largest, b""]).entries()) == [largest, b""]
    with pytest.raises(EvidenceInvalid):
        Tiles(tmp_path, 0).extended([largest + b"x"])


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bundles_are_read_back(made: list[bytes]) -> None:
    assert read_bundle(write_bundle(made), len(made)) == made
    if made:
        with pytest.raises(EvidenceInvalid):
            read_bundle(write_bundle(made)[:-1], len(made))
        with pytest.raises(EvidenceInvalid):
            read_bundle(write_bundle(made), len(made) - 1)


@given(st.binary(max_size=2000), st.integers(0, 256))
def test_any_bytes_are_a_bundle_or_refused(data: bytes, width: int) -> None:
    try:
        made = read_bundle(data, width)
    except EvidenceInvalid:
        return
    assert len(made) == width and write_bundle(made) == data
