"""Programs that were compiled before: taken when they are whole and of this code, else compiled anew."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("spu", reason="SPU is not installed: make mpc")

from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import EXACT
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model import program_store, programs
from cloister_mpc.model.program_store import Program, ProgramStore, code_version, key_of
from cloister_mpc.model.programs import AROUND, Programs
from cloister_mpc.party.weight_store import program_folder
from tests.cloister_mpc.local import SHAPE

TERMS = ("step", 2)
PROGRAM = Program(
    "step", b"its text", ("hidden", "weights/qkv"), ("hidden",),
    (np.arange(6, dtype=np.int32).reshape(2, 3), np.array([[0.5]], np.float32), np.array([True])),
)  # fmt: skip


class Compiler:
    """Counts how often it was asked."""

    def __init__(self, program: Program = PROGRAM) -> None:
        self.program = program
        self.asked = 0

    def __call__(self) -> Program:
        self.asked += 1
        return self.program


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    folder = program_folder(tmp_path / "programs")
    assert folder is not None
    return ProgramStore(folder)


@pytest.fixture
def file(store: ProgramStore) -> Path:
    """Of the one program that is kept."""
    store.get(TERMS, Compiler())
    (found,) = store.folder.glob("*.program")
    return found


def same(one: Program, other: Program) -> bool:
    arrays = zip(one.constants, other.constants, strict=True)
    return one[:4] == other[:4] and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in arrays)


def is_compiled_anew(store: ProgramStore) -> bool:
    """The program is asked for twice; the second time, what was compiled is kept again."""
    again = Compiler()
    assert same(store.get(TERMS, again), PROGRAM) and same(store.get(TERMS, again), PROGRAM)
    return again.asked == 1


def test_what_is_kept_is_not_compiled_again(store: ProgramStore, file: Path) -> None:
    again = Compiler()
    assert same(ProgramStore(store.folder).get(TERMS, again), PROGRAM) and again.asked == 0


def test_files_and_folder_are_their_owners_alone(store: ProgramStore, file: Path) -> None:
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.folder.iterdir()} == {0o600}


BAD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda file: file.write_bytes(b""),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "a bit of the code": lambda file: file.write_bytes(file.read_bytes().replace(b"its text", b"its tfxt")),
    "others may read it": lambda file: file.chmod(0o640),
    "others may write it": lambda file: file.chmod(0o602),
    "a link": lambda file: file.rename(file.parent / "elsewhere") and file.symlink_to(file.parent / "elsewhere"),
    "too large": lambda file: file.open("r+b").truncate(program_store._LARGEST + 1),
}


@pytest.mark.parametrize("harm", BAD.values(), ids=BAD)
def test_a_damaged_or_foreign_file_is_compiled_anew(
    store: ProgramStore, file: Path, harm: Callable[[Path], object]
) -> None:
    harm(file)
    assert is_compiled_anew(store)


def test_so_is_the_file_of_another_program(store: ProgramStore, file: Path) -> None:
    store.get("another", Compiler(PROGRAM._replace(code=b"another")))
    (store.folder / f"{key_of('another')}.program").replace(file)
    assert is_compiled_anew(store)


@given(content=st.binary(max_size=64))
def test_any_bytes_are_no_program(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    store = ProgramStore(tmp_path_factory.mktemp("any"))
    path = store.folder / f"{key_of(TERMS)}.program"
    path.touch(0o600)
    path.write_bytes(program_store.hashlib.sha256(content).digest() + content)
    assert store._find(key_of(TERMS)) is None


def test_sizes_that_do_not_fit_the_bytes_are_no_program(store: ProgramStore, file: Path) -> None:
    wrong = PROGRAM._replace(constants=(SimpleNamespace(dtype="int32", shape=(9,), tobytes=lambda: b"\0" * 8),))
    store._keep(key_of(TERMS), wrong)
    assert is_compiled_anew(store)


@pytest.mark.parametrize("package", ["jax", "jaxlib", "spu"])
def test_programs_of_another_version_are_not_taken(
    store: ProgramStore, file: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_store, "version", lambda name: version(name) + "+other" * (name == package))
    _of_this_code(monkeypatch)
    assert is_compiled_anew(store)


@pytest.mark.parametrize("module", ["cache/ranking.py", "functions/ring.py", "model/decoder.py", "model/programs.py"])
def test_nor_those_of_other_code(
    store: ProgramStore, file: Path, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the code has the same version, until a module of it is changed."""
    home = Path(program_store.__file__).parents[1]
    shutil.copytree(home, tmp_path / "mpc")
    monkeypatch.setattr(program_store, "__file__", str(tmp_path / "mpc" / "model" / "program_store.py"))
    before = code_version()
    assert program_store.code_version.__wrapped__() == before
    with (tmp_path / "mpc" / module).open("a") as code:
        code.write("# changed\n")
    _of_this_code(monkeypatch)
    assert is_compiled_anew(store)


def _of_this_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is found once for a process; here it is found again."""
    monkeypatch.setattr(program_store, "code_version", program_store.code_version.__wrapped__)


def test_all_that_a_program_depends_on_is_in_its_terms() -> None:
    """Around the layers the cache does not matter, and the answer only at the end."""
    spec = GenerationSpec(16, 4)
    others = {
        "prompt": GenerationSpec(32, 4),
        "room": GenerationSpec(16, 8),
        "cache": GenerationSpec(16, 4, CachePlan(method="full", pinned_first=1)),
    }
    for name in ("embed", "prompt", "step", "rescale", "last", "head"):
        key = (name, 2, "any")
        plain = key_of(Programs(SHAPE, spec)._terms(key))
        changed = {what for what, other in others.items() if key_of(Programs(SHAPE, other)._terms(key)) != plain}
        assert changed == (set() if name in AROUND else set(others))
        wider = program_store.msgspec.structs.replace(SHAPE, inner=SHAPE.inner + 1)
        assert key_of(Programs(wider, spec)._terms(key)) != plain
        assert key_of(Programs(SHAPE, spec)._terms((name, 3, "any"))) != plain
        assert key_of(Programs(SHAPE, spec)._terms((name, 2, "logits"))) != plain


def test_other_functions_are_not_kept_beside_those_that_are_served(tmp_path: Path) -> None:
    programs = Programs(SHAPE, GenerationSpec(16, 4), store=ProgramStore(tmp_path), functions=EXACT)
    programs.rescale(1)
    assert not list(tmp_path.iterdir())


def test_around_the_layers_programs_are_the_same_whatever_the_cache() -> None:
    """What `AROUND` claims, and so one spec's program is another's."""
    one = Programs(SHAPE, GenerationSpec(16, 4, answer="logits"))
    other = Programs(SHAPE, GenerationSpec(32, 8, CachePlan(method="mpcache", at_least=0), answer="logits"))
    for programs_of in (Programs.embed, Programs.rescale, Programs.last, Programs.head):
        assert same(programs_of(one, 2), programs_of(other, 2))


def test_a_compiled_program_comes_back_as_it_was(store: ProgramStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Programs(SHAPE, GenerationSpec(16, 4, answer="logits"), store=store).last(16)

    def fails(*_: object) -> Program:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(programs, "_compiled", fails)
    assert same(Programs(SHAPE, GenerationSpec(16, 4, answer="logits"), store=store).last(16), first)
    with pytest.raises(AssertionError, match="compiled again"):
        Programs(SHAPE, GenerationSpec(16, 4), store=store).last(32)


def test_who_shares_a_folder_compiles_once(store: ProgramStore) -> None:
    begun, go_on, both = threading.Event(), threading.Event(), Compiler()

    def slowly() -> Program:
        begun.set()
        assert go_on.wait(60)
        return both()

    found: list[Program] = []
    first = threading.Thread(target=lambda: found.append(store.get(TERMS, slowly)))
    second = threading.Thread(target=lambda: found.append(ProgramStore(store.folder).get(TERMS, both)))
    first.start()
    assert begun.wait(60)
    second.start()
    go_on.set()
    first.join(60)
    second.join(60)
    assert len(found) == 2 and both.asked == 1


def test_the_least_used_make_room(store: ProgramStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_store, "MOST_PROGRAMS", 3)
    for number in range(3):
        store.get(number, Compiler())
        program_store.os.utime(store.folder / f"{key_of(number)}.program", (number, number))
    store.get(0, Compiler())  # used again, so 1 goes
    store.get(3, Compiler())
    assert [(store.folder / f"{key_of(number)}.program").exists() for number in range(4)] == [True, False, True, True]
    monkeypatch.setattr(program_store, "MOST_BYTES", 1000)
    store.get(4, Compiler(PROGRAM._replace(code=b"x" * 800)))
    assert len(list(store.folder.glob("*.program"))) == 1


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere, again = ProgramStore(tmp_path / "file" / "programs"), Compiler()
    assert same(nowhere.get(TERMS, again), PROGRAM) and again.asked == 1


def test_a_compiler_that_fails_leaves_nothing(store: ProgramStore) -> None:
    def fails() -> Program:
        raise OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        store.get(TERMS, fails)
    assert not list(store.folder.glob("*program*"))
