"""Compiled programs in a party's folder; no secret. A file's key digests all it depends on, the compiling code too."""

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.files import only_one, write_whole

MOST_PROGRAMS = 512
MOST_BYTES = 256 << 20  # of a folder. Those that were not used for longest go first

_LARGEST = 64 << 20
_SUFFIX = ".program"
_COMPILED_BY = ("jax", "jaxlib", "numpy", "spu")
_CODE = ("cache", "functions", "model")  # folders of cloister_mpc whose code makes programs


class Program(NamedTuple):
    """`constants`: public arrays, its last inputs. SPU reads `code` at every run: arrays in it took a tenth."""

    name: str
    code: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[NDArray[np.generic], ...] = ()


class _Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["bool", "float32", "int32", "uint32", "uint8"]
    dims: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], ...]
    data: bytes


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    name: str
    code: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[_Array, ...]


@dataclass(frozen=True)
class ProgramStore:
    """`folder` must be ours alone (party.weight_store). Processes may share it: they compile everything once."""

    folder: Path

    def get(self, terms: object, compiled: Callable[[], Program]) -> Program:
        """The program of these terms, which msgspec can encode: as it is kept, or compiled now and kept."""
        key = key_of(terms)
        if (found := self._find(key)) is not None:
            return found
        with self._alone(key):
            if (found := self._find(key)) is not None:  # by another, while we waited
                return found
            program = compiled()
            with suppress(OSError):
                self._keep(key, program)
            return program

    def _find(self, key: str) -> Program | None:
        path = self.folder / f"{key}{_SUFFIX}"
        try:
            content = _read(path)
            kept = msgspec.msgpack.decode(content[32:], type=_Kept)
            if hashlib.sha256(content[32:]).digest() != content[:32] or kept.key != key:
                return None
            constants = tuple(np.frombuffer(each.data, each.dtype).reshape(each.dims) for each in kept.constants)
        except (OSError, ValueError):  # msgspec's errors are of the latter
            return None
        with suppress(OSError):
            os.utime(path)
        return Program(kept.name, kept.code, kept.inputs, kept.outputs, constants)

    def _keep(self, key: str, program: Program) -> None:
        arrays = tuple(_Array(str(each.dtype), each.shape, each.tobytes()) for each in program.constants)  # type: ignore[arg-type]
        content = msgspec.msgpack.encode(_Kept(key, *program[:4], arrays))
        if len(content) < _LARGEST:
            self._make_room(len(content))
            write_whole(self.folder / f"{key}{_SUFFIX}", hashlib.sha256(content).digest() + content, mode=0o600)

    def _make_room(self, coming: int) -> None:
        there = sorted((status.st_mtime_ns, status.st_size, path) for path, status in self._files())
        count, size = len(there) + 1, sum(each for _, each, _ in there) + coming
        for _, each, path in there:
            if count <= MOST_PROGRAMS and size <= MOST_BYTES:
                return
            path.unlink(missing_ok=True)
            count, size = count - 1, size - each

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.folder.glob(f"*{_SUFFIX}*"):
            with suppress(OSError):
                yield path, path.lstat()

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """No other process compiles this program meanwhile. Few locks serve all keys, and stay."""
        with ExitStack() as held:
            with suppress(OSError):
                held.enter_context(only_one(self.folder / f"lock-{key[0]}"))
            yield


def _read(path: Path) -> bytes:
    """A plain file that only its owner may read; OSError where it is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_size > _LARGEST:
            raise PermissionError(path)
        return file.read(_LARGEST)


def key_of(terms: object) -> str:
    return hashlib.sha256(msgspec.json.encode((code_version(), terms))).hexdigest()


@cache
def code_version() -> str:
    """Digest of all code that programs follow from, as far as it may differ from one party's restart to the next."""
    found = hashlib.sha256(repr((sys.version, [(name, version(name)) for name in _COMPILED_BY])).encode())
    home = Path(__file__).parents[1]
    for path in sorted(path for folder in _CODE for path in (home / folder).rglob("*.py")):
        found.update(f"\0{path.relative_to(home)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()
