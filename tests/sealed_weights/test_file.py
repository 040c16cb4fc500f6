"""Weights at rest: what comes out is what went in, or nothing does."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.errors import CloisterError, ModelCorrupt, ModelNotFound, SetupError
from cloister.sealed_weights.file import MAGIC, WeightsBundle, WeightsFile, seal_weights
from cloister.transparency.note import SigningKey
from tests.examples import examples

KEY = bytes(range(32))
SIGNER = SigningKey.generate("provider.example/weights")
OTHER = SigningKey.generate("provider.example/weights")
CHUNK = 4096


def make_model(folder: Path, **sizes: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
    return [folder / name for name in sizes]


def unpack(path: Path, into: Path, key: bytes = KEY, signer: SigningKey = SIGNER) -> dict[str, bytes]:
    into.mkdir(exist_ok=True)
    bundle = WeightsBundle.open(path, signer.verifier)

    def create(file: WeightsFile) -> int:
        return os.open(into / file.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    try:
        bundle.unpack(key, create)
    finally:
        bundle.close()
    return {file.name: (into / file.name).read_bytes() for file in bundle.header.files}


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """Three chunks and a bit, over three files, one of them empty."""
    paths = make_model(tmp_path / "model", config=100, empty=0, model=3 * CHUNK)
    seal_weights(paths, "a-model", tmp_path / "sealed", KEY, SIGNER, chunk_bytes=CHUNK)
    return tmp_path / "sealed"


@given(st.lists(st.integers(0, 3 * CHUNK), min_size=1, max_size=5))
@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_file_comes_back_whatever_its_size(tmp_path: Path, sizes: list[int]) -> None:
    paths = make_model(tmp_path / "model", **{f"f{index}": size for index, size in enumerate(sizes)})
    header = seal_weights(paths, "a-model", tmp_path / "sealed", KEY, SIGNER, chunk_bytes=CHUNK)
    assert header.digest == hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()
    assert unpack(tmp_path / "sealed", tmp_path / "out") == {path.name: path.read_bytes() for path in paths}


def test_the_file_holds_no_plaintext_and_no_key(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"a very secret weight " * 1000)
    seal_weights([folder / "model.safetensors"], "a-model", tmp_path / "sealed", KEY, SIGNER)
    data = (tmp_path / "sealed").read_bytes()
    assert b"secret" not in data and KEY not in data and SIGNER.seed not in data
    assert data.startswith(MAGIC) and b"a-model" in data


def test_one_key_may_seal_many_files(tmp_path: Path) -> None:
    """Same key, same plaintext: nothing of the ciphertexts is the same."""
    paths = make_model(tmp_path / "model", model=CHUNK)
    for name in ("one", "two"):
        seal_weights(paths, "a-model", tmp_path / name, KEY, SIGNER, chunk_bytes=CHUNK)
    one, two = ((tmp_path / name).read_bytes()[-CHUNK - 16 :] for name in ("one", "two"))
    assert not {one[at : at + 16] for at in range(0, CHUNK, 16)} & {two[at : at + 16] for at in range(0, CHUNK, 16)}


def test_another_provider_or_another_key_opens_nothing(sealed: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match="not signed by"):
        unpack(sealed, tmp_path / "out", signer=OTHER)
    with pytest.raises(SetupError, match="not the one"):
        unpack(sealed, tmp_path / "out", key=bytes(32))
    assert not list((tmp_path / "out").iterdir())


def test_every_altered_byte_is_seen(sealed: Path, tmp_path: Path) -> None:
    data = sealed.read_bytes()
    altered_at = {*range(900), *range(900, len(data), 61), len(data) - 1}
    for at in altered_at:
        altered = bytearray(data)
        altered[at] ^= 1
        sealed.write_bytes(altered)
        with pytest.raises(CloisterError):
            unpack(sealed, tmp_path / "out")


def test_every_cut_and_every_addition_is_seen(sealed: Path, tmp_path: Path) -> None:
    data = sealed.read_bytes()
    for length in (*range(0, 900, 7), *range(900, len(data), 501), len(data) - 1):
        sealed.write_bytes(data[:length])
        with pytest.raises(ModelCorrupt):
            unpack(sealed, tmp_path / "out")
    sealed.write_bytes(data + b"\0")
    with pytest.raises(ModelCorrupt, match="bytes, not"):
        unpack(sealed, tmp_path / "out")


def test_chunks_cannot_be_moved_left_out_or_brought_from_another_file(tmp_path: Path) -> None:
    paths = make_model(tmp_path / "model", model=4 * CHUNK)
    files = []
    for name in ("one", "two"):
        seal_weights(paths, "a-model", tmp_path / name, KEY, SIGNER, chunk_bytes=CHUNK)
        files.append((tmp_path / name).read_bytes())
    one, two = files
    size = CHUNK + 16
    header, chunks = one[: -4 * size], [one[len(one) - (4 - index) * size :][:size] for index in range(4)]
    others = [two[len(two) - (4 - index) * size :][:size] for index in range(4)]
    for wrong in (
        [chunks[1], chunks[0], *chunks[2:]],
        [chunks[0], chunks[0], *chunks[2:]],
        [*chunks[:3], chunks[0]],
        [*chunks[:2], others[2], chunks[3]],
        others,
    ):
        (tmp_path / "wrong").write_bytes(header + b"".join(wrong))
        with pytest.raises(ModelCorrupt, match="altered"):
            unpack(tmp_path / "wrong", tmp_path / "out")
    assert unpack(tmp_path / "one", tmp_path / "out")


def test_a_header_that_points_elsewhere_is_refused_even_if_signed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "..evil").write_bytes(b"x")
    seal_weights([folder / "..evil"], "a-model", tmp_path / "sealed", KEY, SIGNER)
    with pytest.raises(ModelCorrupt, match="does not decode"):
        unpack(tmp_path / "sealed", tmp_path / "out")


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    [path] = make_model(tmp_path / "model", model=10)
    seal_weights([path, path], "a-model", tmp_path / "sealed", KEY, SIGNER)
    with pytest.raises(ModelCorrupt, match="twice"):
        unpack(tmp_path / "sealed", tmp_path / "out")


def test_nothing_is_left_of_a_failed_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make_model(tmp_path / "model", model=CHUNK)
    monkeypatch.setattr("cloister.sealed_weights.file._digest", lambda files: bytes(32))
    with pytest.raises(ModelCorrupt, match="changed while"):
        seal_weights(paths, "a-model", tmp_path / "sealed", KEY, SIGNER)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        WeightsBundle.open(tmp_path / "none", SIGNER.verifier)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ModelCorrupt, match="not a file of sealed weights"):
        WeightsBundle.open(tmp_path / "text", SIGNER.verifier)


@given(st.binary(max_size=300), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused(tmp_path: Path, data: bytes, like_one: bool) -> None:
    (tmp_path / "any").write_bytes(MAGIC + data if like_one else data)
    with pytest.raises(ModelCorrupt):
        WeightsBundle.open(tmp_path / "any", SIGNER.verifier)
