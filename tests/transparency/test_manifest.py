"""Release manifests: reproducible, canonical, and true to the source."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloister
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency import manifest as manifest_module
from cloister.transparency.manifest import (
    MAX_MANIFEST_BYTES,
    build_manifest,
    differences,
    measure_running,
    measurement,
    packages_beside,
    read_manifest,
    source_of_running,
)
from tests.transparency.node import flips, manifest

IMAGE = "sha256:" + "ab" * 32


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small source tree."""
    return grow(tmp_path / "tree")


def grow(root: Path) -> Path:
    files = {
        "pyproject.toml": "[project]\n",
        "constraints.txt": "numpy==2\n",
        "README.md": "not of the release\n",
        "src/cloister/__init__.py": '"""Cloister."""\n\n__version__ = "1.2.3"\n',
        "src/cloister/engine/engine.py": "run = True\n",
        "src/cloister/engine/naïve.c": "int main;\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_manifest_names_every_file_by_its_hash(tree: Path) -> None:
    made = build_manifest(tree, image=IMAGE)
    assert made.version == "1.2.3" and made.image == IMAGE
    assert made.lock == hashlib.sha256(b"numpy==2\n").hexdigest()
    assert sorted(made.files) == [
        "pyproject.toml",
        "src/cloister/__init__.py",
        "src/cloister/engine/engine.py",
        "src/cloister/engine/naïve.c",
    ]
    assert made.files["src/cloister/engine/engine.py"] == hashlib.sha256(b"run = True\n").hexdigest()
    assert made.measurement() == measurement(made.encoded()) == hashlib.sha256(made.encoded()).digest()
    assert read_manifest(made.encoded()) == made


def test_the_same_tree_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "copy"
    shutil.copytree(tree, other)
    (other / "src/cloister/__pycache__").mkdir()
    (other / "src/cloister/__pycache__/x.cpython-311.pyc").write_bytes(b"compiled")
    (other / "docs.md").write_text("not of the release\n")
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    assert build_manifest(other).encoded() == build_manifest(tree).encoded()


def test_a_changed_benchmark_changes_no_measurement(tree: Path) -> None:
    before = build_manifest(tree).measurement()
    benchmark = tree / "src" / "cloister_bench" / "load.py"
    benchmark.parent.mkdir()
    benchmark.write_text("users = 32\n")
    assert build_manifest(tree).measurement() == before
    (tree / "src" / "cloister" / "load.py").write_text("users = 32\n")
    assert build_manifest(tree).measurement() != before


def test_a_changed_level_changes_the_measurement_where_the_release_has_it_and_nowhere_else(tree: Path) -> None:
    level = tree / "src" / "cloister_mpc" / "__init__.py"
    alone = build_manifest(tree)
    level.parent.mkdir()
    level.write_text("parties = 3\n")
    (level.parent / "pyproject.toml").write_text("[project]\n")
    offering = build_manifest(tree, also=("cloister_mpc",))
    assert build_manifest(tree) == alone and packages_beside(alone) == ()
    assert offering.files.keys() - alone.files.keys() == {"src/cloister_mpc/__init__.py"}
    level.write_text("parties = 2\n")
    changed = build_manifest(tree, also=("cloister_mpc",))
    assert build_manifest(tree) == alone and changed.measurement() != offering.measurement()
    assert differences(offering, changed) == ("src/cloister_mpc/__init__.py is another",)
    assert differences(offering, alone) == ("src/cloister_mpc/__init__.py is missing",)
    assert differences(alone, offering) == ("src/cloister_mpc/__init__.py is not of the release",)
    with pytest.raises(SetupError, match="cloister_other is not in"):
        build_manifest(tree, also=("cloister_other",))


def test_nothing_of_the_machine_is_in_it(tree: Path) -> None:
    text = build_manifest(tree).encoded().decode()
    assert str(tree) not in text and str(Path.home()) not in text and os.uname().nodename not in text


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "src/cloister/engine/engine.py").write_text("run = False\n"),
        lambda tree: (tree / "src/cloister/engine/engine.py").rename(tree / "src/cloister/engine/motor.py"),
        lambda tree: (tree / "src/cloister/extra.so").write_bytes(b"code"),
        lambda tree: (tree / "src/cloister/.hidden.py").write_bytes(b"code"),
        lambda tree: (tree / "src/cloister/engine/naïve.c").unlink(),
        lambda tree: (tree / "constraints.txt").write_text("numpy==3\n"),
        lambda tree: (tree / "pyproject.toml").unlink(),
    ],
)
def test_every_change_shows(tree: Path, change) -> None:  # type: ignore[no-untyped-def]
    before = build_manifest(tree)
    change(tree)
    assert build_manifest(tree).measurement() != before.measurement()


def test_what_cannot_be_compared_is_refused(tree: Path) -> None:
    package = tree / "src/cloister"
    for make in (
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to("/usr"),
        lambda path: path.write_bytes(b"compiled") and path.rename(path.with_suffix(".pyc")),
        os.mkfifo,
        lambda path: Path(os.fsdecode(os.fsencode(path) + b"\xff")).write_bytes(b""),
    ):
        make(package / "odd")
        with pytest.raises(SetupError):
            build_manifest(tree)
        for path in package.glob("odd*"):
            path.unlink()
    build_manifest(tree)


@pytest.mark.parametrize("init", ["", "__version__ = 1\n", "__version__ = 'a b'\n", "def\n", "__version__ = x()\n"])
def test_a_tree_must_say_its_version(tree: Path, init: str) -> None:
    (tree / "src/cloister/__init__.py").write_text(init)
    with pytest.raises(SetupError):
        build_manifest(tree)


def test_a_folder_that_is_no_source_tree_and_a_wrong_image_are_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="not a source tree"):
        build_manifest(tmp_path)
    for wrong in ("", "latest", "sha256:" + "AB" * 32, IMAGE + "0", IMAGE + "\n"):
        with pytest.raises(SetupError):
            build_manifest(tree, image=wrong)


def test_the_running_package_is_measured(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = build_manifest(tree)
    monkeypatch.setattr(manifest_module, "__file__", str(tree / "src/cloister/transparency/manifest.py"))
    assert measure_running() == release and source_of_running() == tree
    installed = tmp_path / "site-packages" / "cloister"
    shutil.copytree(tree / "src/cloister", installed)
    monkeypatch.setattr(manifest_module, "__file__", str(installed / "transparency/manifest.py"))
    with pytest.raises(SetupError):
        source_of_running()
    assert measure_running().lock is None
    assert differences(release, measure_running()) == ()
    (installed / "engine/engine.py").write_text("run = False\n")
    (installed / "engine/naïve.c").unlink()
    (installed / "extra.py").write_text("")
    assert differences(release, measure_running()) == (
        "src/cloister/engine/engine.py is another",
        "src/cloister/engine/naïve.c is missing",
        "src/cloister/extra.py is not of the release",
    )


def test_another_lock_or_project_file_is_a_difference_where_both_have_one(tree: Path) -> None:
    release = build_manifest(tree)
    (tree / "constraints.txt").write_text("numpy==3\n")
    (tree / "pyproject.toml").write_text("[tool]\n")
    assert differences(release, build_manifest(tree)) == ("pyproject.toml is another", "constraints.txt is another")


def test_what_runs_now_can_be_measured() -> None:
    made = measure_running()
    assert made.version == cloister.__version__ and "src/cloister/transparency/manifest.py" in made.files
    assert differences(made, made) == ()


def test_every_bit_of_a_manifest_counts() -> None:
    good = manifest(1)
    for wrong in flips(good):
        assert measurement(wrong) != measurement(good)
        try:
            assert read_manifest(wrong).encoded() == wrong
        except EvidenceInvalid:
            continue


GOOD = json.loads(manifest(1))


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        manifest(1) + b"\n",
        manifest(1).rstrip(),
        manifest(1).replace(b" ", b""),
        json.dumps({**GOOD, "more": 1}, sort_keys=True, indent=1).encode() + b"\n",
        json.dumps({**GOOD, "format": "v9"}, sort_keys=True, indent=1).encode() + b"\n",
        json.dumps({**GOOD, "version": "1\n2"}, sort_keys=True, indent=1).encode() + b"\n",
        json.dumps({**GOOD, "files": {"a": "B" * 64}}, sort_keys=True, indent=1).encode() + b"\n",
        json.dumps({**GOOD, "files": {"a": "b" * 64 + "\n"}}, sort_keys=True, indent=1).encode() + b"\n",
        json.dumps({**GOOD, "lock": "short"}, sort_keys=True, indent=1).encode() + b"\n",
        json.dumps(GOOD, indent=1).encode().replace(b'"files"', b'"version": "1",\n "files"') + b"\n",
        b" " * (MAX_MANIFEST_BYTES + 1),
    ],
)
def test_what_is_no_manifest_is_refused(wrong: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        read_manifest(wrong)


@given(
    st.binary(max_size=500)
    | st.builds(
        lambda value: json.dumps(value).encode(),
        st.dictionaries(
            st.sampled_from(["format", "version", "files", "lock", "image", "x"]),
            st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.text()),
        ),
    )
)
def test_anything_is_a_manifest_or_refused(data: bytes) -> None:
    try:
        assert read_manifest(data).encoded() == data
    except EvidenceInvalid:
        return
