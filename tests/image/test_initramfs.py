"""A release's image: the same bytes anywhere, and read back, the release it runs."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from pathlib import Path

import pytest

from cloister.errors import EvidenceInvalid, SetupError
from cloister.image.initramfs import INIT, MANIFEST, release_in, write_image
from cloister.transparency.manifest import build_manifest
from tests.transparency.test_manifest import grow


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return a_tree(tmp_path / "tree")


def a_tree(folder: Path) -> Path:
    """A small source tree with an /init of its own."""
    (grow(folder) / INIT).parent.mkdir()
    (folder / INIT).write_text("#!/bin/sh\nexec serve\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return a_root(tmp_path / "root")


def a_root(folder: Path) -> Path:
    """A root folder with a program, a link and what Python left behind."""
    for name, text in {"bin/sh": "#!", "usr/lib/x.py": "x = 1\n", "usr/lib/__pycache__/x.pyc": "compiled"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "bin/sh").chmod(0o755)
    (folder / "bin/ash").symlink_to("sh")
    return folder


def build(root: Path, tree: Path) -> bytes:
    out = io.BytesIO()
    digest = write_image(root, tree, build_manifest(tree).encoded(), out)
    assert digest == hashlib.sha256(out.getvalue()).hexdigest()
    return out.getvalue()


def test_the_same_inputs_give_the_same_bytes(root: Path, tree: Path, tmp_path: Path) -> None:
    first = build(root, tree)
    other = tmp_path / "elsewhere"
    for name in ("usr", "bin"):
        shutil.copytree(root / name, other / name, symlinks=True)
    shutil.rmtree(other / "usr/lib/__pycache__")
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
        if path.is_file() and not path.is_symlink():
            path.chmod(0o700 if path.name == "sh" else 0o600)
    assert build(other, tree) == first
    (other / "bin/sh").chmod(0o644)
    assert build(other, tree) != first


def test_it_is_an_archive_as_linux_reads_it(root: Path, tree: Path) -> None:
    """Read here by the buffer format's own words: magic, thirteen numbers in hex, name, bytes; all in fours."""
    data, names, at = build(root, tree), {}, 0
    while True:
        numbers = [int(data[at + 6 + 8 * field : at + 14 + 8 * field], 16) for field in range(13)]
        assert data[at : at + 6] == b"070701"
        name = data[at + 110 : at + 110 + numbers[11] - 1].decode()
        start = (at + 110 + numbers[11] + 3) // 4 * 4
        if name == "TRAILER!!!":
            break
        assert numbers[2:4] == [0, 0] and numbers[5] == 0, "owner and time"
        names[name] = (oct(numbers[1]), data[start : start + numbers[6]])
        at = (start + numbers[6] + 3) // 4 * 4
    assert start == len(data)
    assert list(names) == sorted(names) and names["init"] == ("0o100755", (tree / INIT).read_bytes())
    assert names["bin/sh"][0] == "0o100755" and names["bin/ash"] == ("0o120777", b"sh")
    assert names["usr/lib/x.py"][0] == "0o100644" and not any("pycache" in name for name in names)
    assert names["dev/console"][0] == "0o20600" and names[MANIFEST][1] == build_manifest(tree).encoded()
    assert all(str(Path(name).parent) in {*names, "."} for name in names), "folders come with what is in them"


def test_it_says_which_release_it_runs(root: Path, tree: Path) -> None:
    data, manifest = build(root, tree), build_manifest(tree)
    assert release_in(io.BytesIO(data)) == (manifest, manifest.measurement())
    changed = data.replace(b"run = True\n", b"run = Fals\n")
    twice = data[: data.index(b"070701", 1)] + data
    at = data.index(b"exec serve")  # /init comes before the source it is a copy of
    other_init = data[:at] + b"exec other" + data[at + 10 :]
    for wrong in (changed, other_init, data + b"\0", data[:-8], twice, b"", b"\x1f\x8b" + data):
        assert wrong != data
        with pytest.raises(EvidenceInvalid):
            release_in(io.BytesIO(wrong))


def test_a_levels_code_is_in_the_image_of_a_release_that_names_it(root: Path, tree: Path) -> None:
    level = tree / "src" / "cloister_mpc" / "__init__.py"
    level.parent.mkdir()
    level.write_text("parties = 3\n")
    assert b"parties = 3" not in build(root, tree), "this release does not name it"
    manifest, out = build_manifest(tree, also=("cloister_mpc",)), io.BytesIO()
    write_image(root, tree, manifest.encoded(), out)
    assert release_in(io.BytesIO(out.getvalue())) == (manifest, manifest.measurement())
    with pytest.raises(EvidenceInvalid, match=r"cloister_mpc/__init__\.py in the image is not the release's"):
        release_in(io.BytesIO(out.getvalue().replace(b"parties = 3", b"parties = 2")))


def test_a_root_folder_that_is_not_there_is_not_taken_for_an_empty_one(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere cannot be read"):
        build(tmp_path / "nowhere", tree)


def test_what_is_not_the_release_is_not_packed(root: Path, tree: Path) -> None:
    manifest = build_manifest(tree).encoded()
    (tree / "src/cloister/engine/engine.py").write_text("run = False\n")
    with pytest.raises(SetupError, match="not the release's"):
        write_image(root, tree, manifest, io.BytesIO())
    (root / "init").write_text("")
    with pytest.raises(SetupError, match="has a file"):
        build(root, tree)
    (root / "init").unlink()
    (tree / INIT).unlink()
    with pytest.raises(SetupError, match="no /init"):
        build(root, tree)
    os.mkfifo(root / "pipe")
    with pytest.raises(SetupError, match="neither"):
        build(root, a_tree(tree.parent / "other"))
