"""`python … release_code.py FD MODULE …` is `python -m MODULE …` of a release's bytes (FD: its manifest). A source file
is read once, hashed, compiled; a package counts by its RECORD; any other import ends the process. The standard
library's modules imported here run before they are compared. `SYSTEM`: measured with the machine's image."""

import csv
import hashlib
import json
import os
import re
import sys
import sysconfig
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any, NoReturn

# No user's folder, .pth file, sitecustomize or compiled file; not -I, which would ignore PYTHONMALLOC.
FLAGS = ("-P", "-s", "-S", "-B", "-X", "pycache_prefix=/dev/null/none", "--check-hash-based-pycs", "always")
SOURCES = "src/"
SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
KERNELS = "cloister-kernels"  # a memory file whose hash was compared before (compute/cpu/library.py)
_NOT_OF_THE_WHEEL = (".pyc", "/INSTALLER", "/REQUESTED", "/direct_url.json", "/uv_cache.json")
_OURS = ("cloister", "cloister_bench", "cloister_mpc", "cloister_vllm")
_NOT_USED = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "tkinter"}


def packages_in(folders: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Hashes by path, by RECORD. Not this repository's distributions: the manifest names their files."""
    for folder in folders:
        for entry in sorted(os.listdir(folder)):
            name, _, version = entry.removesuffix(".dist-info").rpartition("-")
            record = os.path.join(folder, entry, "RECORD")
            if name not in _OURS and entry.endswith(".dist-info") and os.path.isfile(record):
                yield f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}", dict(_recorded(folder, record))


def _recorded(folder: str, record: str) -> Iterator[tuple[str, str]]:
    """The wheel's files, without those that the installer added: notes, scripts, compiled files."""
    with open(record, newline="", encoding="utf-8") as file:
        for row in (row for row in csv.reader(file) if len(row) > 1):
            path, (kind, _, digest) = row[0], row[1].partition("=")
            if kind == "sha256" and not path.startswith(("..", "/")) and not path.endswith(_NOT_OF_THE_WHEEL):
                yield os.path.join(folder, path), urlsafe_b64decode(digest + "==").hex()


def interpreter_files() -> dict[str, str]:
    """The hashes of this Python: its standard library (not its tests), its program and its own library."""
    found = {path: hash_of(path) for path in _standard_library()}
    for path in (sys.executable, *(each for each, _ in mapped_files() if "/libpython" in each)):
        found[os.path.realpath(path)] = hash_of(path)
    return found


def interpreter_name() -> str:
    return "python==" + ".".join(map(str, sys.version_info[:3]))


def installed() -> dict[str, str]:
    folders = package_folders()
    found = {name: digest_of(files, folder) for folder in folders for name, files in packages_in([folder])}
    return {**found, interpreter_name(): digest_of(interpreter_files(), os.path.dirname(os.__file__))}


def changed_files() -> list[str]:
    recorded = {path: each for _, files in packages_in(package_folders()) for path, each in files.items()}
    return [path for path, each in sorted(recorded.items()) if not os.path.isfile(path) or hash_of(path) != each]


def package_folders() -> list[str]:
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return [folder for folder in folders if os.path.isdir(folder)]


def _standard_library() -> Iterator[str]:
    for folder, folders, names in os.walk(os.path.dirname(os.__file__)):
        folders[:] = sorted(set(folders) - _NOT_USED)
        for name in sorted(names):
            if name.endswith((".py", ".so")):
                yield os.path.join(folder, name)


def digest_of(files: Mapping[str, str], folder: str) -> str:
    """One hash over all files, by their paths in `folder`; a file elsewhere counts by its name."""
    inside = {
        os.path.relpath(path, folder) if path.startswith(folder + "/") else os.path.basename(path): each
        for path, each in files.items()
    }
    return hashlib.sha256("".join(f"{path}\0{inside[path]}\n" for path in sorted(inside)).encode()).hexdigest()


def hash_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mapped_files() -> Iterator[tuple[str, int]]:
    """Every file whose code this process could execute, by path and inode."""
    with open("/proc/self/maps") as file:
        lines = [line.rstrip("\n").split(maxsplit=5) for line in file]
    yield from {(line[5], int(line[4])) for line in lines if len(line) == 6 and "x" in line[1] and line[4] != "0"}


class ReleaseCode:
    """The files that may run in this process. A process that it starts reads the manifest from `descriptor`."""

    def __init__(self, descriptor: int, manifest: bytes, root: str, folders: list[str]) -> None:
        self.descriptor = descriptor
        self.measurement = hashlib.sha256(manifest).digest()
        content: dict[str, Any] = json.loads(manifest)
        self.kernels: dict[str, str] = content.get("kernels") or {}
        self.hashes = {
            os.path.join(root, path.removeprefix(SOURCES)): each
            for path, each in content["files"].items()
            if path.startswith(SOURCES)
        }
        if not (packages := content.get("packages")):
            refuse("The release does not say which packages it needs.", "Build it with --packages.")
        self._add(interpreter_name(), interpreter_files(), os.path.dirname(os.__file__), packages)
        for folder in folders:
            for name, files in packages_in([folder]):
                if name in packages:
                    self._add(name, files, folder, packages)

    def _add(self, name: str, files: dict[str, str], folder: str, packages: dict[str, str]) -> None:
        if packages.get(name) != digest_of(files, folder):
            refuse(f"{name} is not as the release has it.", "Install the packages of the release again.")
        self.hashes.update(files)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            data = file.read()
        if self.hashes.get(path) != hashlib.sha256(data).hexdigest():
            raise PermissionError(f"{path} is not of the release.")
        return data

    def check(self, path: str) -> None:
        if self.hashes.get(path) != hash_of(path):
            refuse(f"{path} is not of the release.")

    def kernels_among(self, libraries: Iterable[bytes]) -> bytes:
        for library in libraries:
            if hashlib.sha256(library).hexdigest() in self.kernels:
                return library
        refuse(
            "No kernels in the cache folder are the release's.",
            "`cloister release lock` builds this machine's kernels there; a release must name them.",
        )

    def install(self, path: list[str]) -> None:
        code = self

        class Source(SourceFileLoader):
            def get_data(self, path: str) -> bytes:
                return code.read(path)

            def get_code(self, fullname: str) -> CodeType:
                path = self.get_filename(fullname)
                try:
                    data = self.get_data(path)
                except OSError:
                    refuse(f"{path} is not of the release.")
                compiled: CodeType = self.source_to_code(data, path)
                return compiled

        class Extension(ExtensionFileLoader):
            def create_module(self, spec: ModuleSpec) -> ModuleType:
                code.check(self.get_filename(spec.name))
                return super().create_module(spec)

        sys.path[:] = path
        sys.path_hooks[:] = [FileFinder.path_hook((Extension, EXTENSION_SUFFIXES), (Source, SOURCE_SUFFIXES))]
        sys.path_importer_cache.clear()

    def check_loaded(self) -> None:
        """Finds also files that bypassed the importer: modules loaded by path, libraries loaded by other libraries."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and os.path.isabs(file) and file not in self.hashes:
                refuse(f"The module {name} comes from {file}, which is not of the release.")
        for path, inode in mapped_files():
            if path.startswith((*SYSTEM, f"/memfd:{KERNELS} ")):
                continue
            if path not in self.hashes:
                refuse(f"{path} is not of the release.")
            if os.stat(path).st_ino != inode:
                refuse(f"{path} was replaced while the node started.")
            self.check(path)


def refuse(message: str, hint: str = "Only files of the release may run where a release is shown.") -> NoReturn:
    """Not an Exception: an optional import that fails must not hide it."""
    if "CLOISTER_LOG_LINES" in os.environ:  # our parent shows log lines only, and these without paths
        said = '"template":"A file that is not of the release would have run."'
        print('{"severity":"critical","process":"template",' + said + "}", file=sys.stderr, flush=True)
    else:
        print(f"Error: {message}\n{hint}", file=sys.stderr, flush=True)
    raise SystemExit(2)


running: ReleaseCode | None = None  # `main` sets it before any other code of Cloister runs


def main() -> None:
    for name in os.environ.keys() - {"PYTHONMALLOC"}:
        if name.startswith(("PYTHON", "LD_")):
            refuse(f"{name} is set, which brings other code.", "Start the node by `cloister serve`, which removes it.")
    descriptor, module = int(sys.argv[1]), sys.argv[2]
    note: dict[str, Any] = json.loads(os.pread(descriptor, 1 << 24, 0))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = ReleaseCode(descriptor, note["manifest"].encode(), root, note["folders"])
    code.check(os.path.abspath(__file__))
    code.install([*sys.path, root, *note["folders"]])
    import runpy

    from cloister.process import release_code  # this file runs as __main__; the other processes' code imports it

    release_code.running = code
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
