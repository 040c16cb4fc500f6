"""RFC 6962 by its own words, by the published vectors, and by every alteration of a proof."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.transparency.merkle import (
    EMPTY_ROOT,
    MAX_SIZE,
    consistency_proof,
    fold,
    inclusion_proof,
    leaf_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from tests.transparency.node import flips, in_memory

ENTRIES = [bytes.fromhex(each) for each in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")] + [
    bytes(range(0x60, 0x70))
]
ROOT_OF_EIGHT = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


def by_the_rfc(entries: list[bytes]) -> bytes:
    """MTH of RFC 6962 §2.1, word for word."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return hashlib.sha256(b"\x01" + by_the_rfc(entries[:k]) + by_the_rfc(entries[k:])).digest()


def path_by_the_rfc(m: int, entries: list[bytes]) -> list[bytes]:
    """PATH of §2.1.1."""
    if len(entries) == 1:
        return []
    k = 1
    while k * 2 < len(entries):
        k *= 2
    if m < k:
        return [*path_by_the_rfc(m, entries[:k]), by_the_rfc(entries[k:])]
    return [*path_by_the_rfc(m - k, entries[k:]), by_the_rfc(entries[:k])]


def subproof_by_the_rfc(m: int, entries: list[bytes], b: bool) -> list[bytes]:
    """SUBPROOF of §2.1.2."""
    if m == len(entries):
        return [] if b else [by_the_rfc(entries)]
    k = 1
    while k * 2 < len(entries):
        k *= 2
    if m <= k:
        return [*subproof_by_the_rfc(m, entries[:k], b), by_the_rfc(entries[k:])]
    return [*subproof_by_the_rfc(m - k, entries[k:], False), by_the_rfc(entries[:k])]


def leaves(count: int) -> list[bytes]:
    return [leaf_hash(str(number).encode()) for number in range(count)]


def test_a_known_tree_has_its_known_root() -> None:
    hashes = [leaf_hash(entry) for entry in ENTRIES]
    assert fold(hashes).hex() == ROOT_OF_EIGHT
    assert fold([]) == EMPTY_ROOT


@pytest.mark.parametrize("size", range(1, 34))
def test_roots_and_proofs_are_those_of_the_rfc(size: int) -> None:
    entries = [str(number).encode() for number in range(size)]
    subtree = in_memory(leaves(size))
    root = by_the_rfc(entries)
    assert fold(leaves(size)) == tree_root(subtree, size) == root
    for index in range(size):
        proof = inclusion_proof(subtree, index, size)
        assert list(proof) == path_by_the_rfc(index, entries)
        assert verify_inclusion(index, size, leaf_hash(entries[index]), proof, root)
    for old in range(1, size + 1):
        proof = consistency_proof(subtree, old, size)
        assert list(proof) == subproof_by_the_rfc(old, entries, True)
        assert verify_consistency(old, size, by_the_rfc(entries[:old]), root, proof)


@given(st.integers(1, 300), st.data())
def test_no_proof_serves_another_place_size_or_leaf(size: int, data: st.DataObject) -> None:
    hashes = leaves(size)
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size + 5).filter(lambda each: each != index))
    proof, root = inclusion_proof(in_memory(hashes), index, size), fold(hashes)
    assert verify_inclusion(index, size, hashes[index], proof, root)
    assert not verify_inclusion(other, size, hashes[index], proof, root)
    assert not verify_inclusion(index, size, hashes[index], (*proof, root), root)
    assert not verify_inclusion(index, size, leaf_hash(b"another"), proof, root)
    if proof:
        assert not verify_inclusion(index, size, hashes[index], proof[:-1], root)
        assert not verify_inclusion(index, size, hashes[index], proof[1:], root)


@given(st.integers(2, 300), st.data())
def test_a_tree_that_changed_its_past_has_no_consistency_proof(size: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, size - 1))
    changed = data.draw(st.integers(0, old - 1))
    past = leaves(size)
    fork = [*past[:changed], leaf_hash(b"rewritten"), *past[changed + 1 :]]
    honest = consistency_proof(in_memory(past), old, size)
    assert verify_consistency(old, size, fold(past[:old]), fold(past), honest)
    made_by_fork = consistency_proof(in_memory(fork), old, size)
    assert not verify_consistency(old, size, fold(past[:old]), fold(fork), made_by_fork)
    assert not verify_consistency(old, size, fold(past[:old]), fold(fork), honest)


@pytest.mark.parametrize(("index", "size"), [(0, 1), (2, 5), (6, 7), (3, 8)])
def test_every_bit_of_an_inclusion_proof_counts(index: int, size: int) -> None:
    hashes = leaves(size)
    proof, root = inclusion_proof(in_memory(hashes), index, size), fold(hashes)
    for at, step in enumerate(proof):
        for wrong in flips(step):
            assert not verify_inclusion(index, size, hashes[index], (*proof[:at], wrong, *proof[at + 1 :]), root)
    assert not any(verify_inclusion(index, size, wrong, proof, root) for wrong in flips(hashes[index]))
    assert not any(verify_inclusion(index, size, hashes[index], proof, wrong) for wrong in flips(root))


@pytest.mark.parametrize(("old", "size"), [(1, 2), (3, 7), (4, 8), (6, 8), (5, 5)])
def test_every_bit_of_a_consistency_proof_counts(old: int, size: int) -> None:
    hashes = leaves(size)
    proof, before, after = consistency_proof(in_memory(hashes), old, size), fold(hashes[:old]), fold(hashes)
    for at, step in enumerate(proof):
        for wrong in flips(step):
            assert not verify_consistency(old, size, before, after, (*proof[:at], wrong, *proof[at + 1 :]))
    assert not any(verify_consistency(old, size, wrong, after, proof) for wrong in flips(before))
    assert not any(verify_consistency(old, size, before, wrong, proof) for wrong in flips(after))


def test_sizes_without_meaning_are_refused() -> None:
    root = fold(leaves(2))
    assert not verify_consistency(0, 2, EMPTY_ROOT, root, ())
    assert not verify_consistency(3, 2, root, root, ())
    assert not verify_consistency(-1, 2, root, root, ())
    assert not verify_inclusion(-1, 2, leaves(1)[0], (leaves(2)[1],), root)
    assert not verify_inclusion(0, MAX_SIZE + 1, leaves(1)[0], (root,) * 63, root)
    for wrong in (-1, 2):
        with pytest.raises(ValueError):
            inclusion_proof(in_memory(leaves(2)), wrong, 2)
    with pytest.raises(ValueError):
        consistency_proof(in_memory(leaves(2)), 3, 2)


def vectors(shared: Path, kind: str) -> dict[str, dict[str, Any]]:
    folder = shared / "vectors" / "tlog" / "merkle" / "testdata" / kind
    return {str(path.relative_to(folder)): json.loads(path.read_bytes()) for path in sorted(folder.rglob("*.json"))}


def decoded(hashes: list[str] | None) -> list[bytes]:
    return [base64.b64decode(each) for each in hashes or []]


def test_published_vectors(shared: Path) -> None:
    inclusion, consistency = vectors(shared, "inclusion"), vectors(shared, "consistency")
    assert len(inclusion) + len(consistency) == 196
    for name, case in inclusion.items():
        leaf, root = base64.b64decode(case["leafHash"]), base64.b64decode(case["root"])
        holds = verify_inclusion(case["leafIdx"], case["treeSize"], leaf, decoded(case["proof"]), root)
        assert holds is not case["wantErr"], f"inclusion {name}: {case['desc']}"
    for name, case in consistency.items():
        roots = base64.b64decode(case["root1"]), base64.b64decode(case["root2"])
        holds = verify_consistency(case["size1"], case["size2"], *roots, decoded(case["proof"]))
        assert holds is not case["wantErr"], f"consistency {name}: {case['desc']}"
