"""A release's manifest (files' names, SHA-256 alone), lock file and log entry. Reports are bound to `measurement`."""

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from cloister.checks import decode_evidence
from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import sha256_of

MAX_LOCK_BYTES = 262144
_LINE = re.compile(r"(\S+==\S+|kernels) sha256:([0-9a-f]{64})(?: (.{1,1024}))?")


class Packages(Struct, frozen=True):
    packages: dict[str, str]
    kernels: dict[str, str]

    def encoded(self) -> bytes:
        lines = [f"{name} sha256:{each}" for name, each in sorted(self.packages.items())]
        lines += [f"kernels sha256:{each} {built}" for each, built in sorted(self.kernels.items())]
        return "".join(line + "\n" for line in lines).encode()


def read_packages(data: bytes) -> Packages:
    packages: dict[str, str] = {}
    kernels: dict[str, str] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None or (match[3] is None) == (match[1] == "kernels"):
            hint = "Make it: cloister release lock."
            raise SetupError(f"Line {number} of the lock file names no package by its hash.", hint=hint)
        if match[1] == "kernels":
            kernels[match[2]] = match[3]
        elif packages.setdefault(match[1], match[2]) != match[2]:
            raise SetupError(f"Line {number} of the lock file contradicts an earlier one.")
    return Packages(packages, kernels)


FORMAT = "cloister-release/v1"
MAX_MANIFEST_BYTES = 262144
SOURCES = "src/"
PACKAGE = SOURCES + "cloister"
PROJECT_FILE = "pyproject.toml"
LOCK_FILE = "constraints.txt"
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Version = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z.+!-]{0,63}\Z")]
FileName = Annotated[str, Meta(min_length=1, max_length=512)]
PackageName = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9-]*==[0-9A-Za-z][0-9A-Za-z.+!_-]*\Z", max_length=128)]
Built = Annotated[str, Meta(max_length=1024)]
_IMAGE = re.compile(r"sha256:[0-9a-f]{64}")


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: Version
    files: dict[FileName, Sha256]
    lock: Sha256 | None  # The file that pins every dependency.
    image: Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")] | None  # container or machine image
    packages: dict[PackageName, Sha256] | None = None  # Python too (`cloister release lock`); nodes need it
    kernels: dict[Sha256, Built] | None = None  # The built libraries of kernels that it may load, and what built them.

    def encoded(self) -> bytes:
        """The one way to write it: sorted, indented for people who compare releases, a newline at the end."""
        text = json.dumps(msgspec.to_builtins(self), sort_keys=True, indent=1, ensure_ascii=True)
        return text.encode("ascii") + b"\n"

    def measurement(self) -> bytes:
        return measurement(self.encoded())


def measurement(manifest: bytes) -> bytes:
    """The release's name in evidence and logs: SHA-256 of its manifest."""
    return hashlib.sha256(manifest).digest()


def read_manifest(data: bytes) -> Manifest:
    """The manifest, or EvidenceInvalid. Only its canonical form is accepted."""
    manifest = decode_evidence(data, Manifest, "A release manifest", limit=MAX_MANIFEST_BYTES)
    if manifest.format != FORMAT:
        raise EvidenceInvalid(f"The release manifest is not of the format {FORMAT}.", hint="Update cloister.")
    if manifest.encoded() != data:
        raise EvidenceInvalid("The release manifest is not written canonically.", hint="`cloister release build` is.")
    return manifest


def build_manifest(
    source: Path, *, also: Sequence[str] = (), image: str | None = None, packages: Packages | None = None
) -> Manifest:
    """`also` names packages beside `src/cloister` that belong to the release: levels that are distributions."""
    package = source / PACKAGE
    if not (package / "__init__.py").is_file():
        hint = f"Name the folder that has {PACKAGE} in it."
        raise SetupError(f"{source} is not a source tree of Cloister.", hint=hint)
    if image is not None and not _IMAGE.fullmatch(image):
        raise SetupError("An image is named by its digest.", hint="Like: sha256:<64 hex digits>")
    made = _manifest_of(package, source, image, also)
    if packages is not None:
        made = replace(made, packages=packages.packages, kernels=packages.kernels or None)
    return _checked(made)


def measure_running(also: Sequence[str] = ()) -> Manifest:
    return _checked(_manifest_of(_running_package(), _running_tree(), None, also))


def packages_beside(manifest: Manifest) -> tuple[str, ...]:
    folders = {path.split("/")[1] for path in manifest.files if path.startswith(SOURCES)}
    return tuple(sorted(folders - {"cloister"}))


def source_of_running() -> Path:
    tree = _running_tree()
    if tree is None:
        raise SetupError("This program does not run from a source tree.", hint="Name one with --source DIR.")
    return tree


def differences(release: Manifest, running: Manifest) -> tuple[str, ...]:
    """A line each. An installed package has no project or lock file, so those count only where both have them."""
    found = []
    for path in sorted(release.files.keys() | running.files.keys()):
        wanted, here = release.files.get(path), running.files.get(path)
        if wanted != here and (path.startswith(SOURCES) or (wanted and here)):
            how = "missing" if here is None else "another" if wanted else "not of the release"
            found.append(f"{path} is {how}")
    if release.lock and running.lock and release.lock != running.lock:
        found.append(f"{LOCK_FILE} is another")
    if release.packages is not None and running.packages is not None:
        # Other installed packages do not count: a release's processes cannot import them.
        installed = running.packages
        others = (name for name, each in sorted(release.packages.items()) if installed.get(name) != each)
        found += [f"{name} is {'another' if name in installed else 'missing'}" for name in others]
    if release.version != running.version:
        found.append(f"version is {running.version}, not {release.version}")
    return tuple(found)


def _running_package() -> Path:
    return Path(__file__).resolve().parents[1]


def _running_tree() -> Path | None:
    package = _running_package()
    tree = package.parents[1]
    return tree if package == tree / PACKAGE and (tree / PROJECT_FILE).is_file() else None


def _manifest_of(package: Path, beside: Path | None, image: str | None, also: Sequence[str]) -> Manifest:
    root = package.parent
    if absent := [name for name in also if not (root / name / "__init__.py").is_file()]:
        raise SetupError(f"{absent[0]} is not in {root}.", hint="Install it in the same way as cloister.")
    try:
        paths = [path for folder in (package, *(root / name for name in also)) for path in _files_of(folder)]
        files = {f"{SOURCES}{path.relative_to(root).as_posix()}": sha256_of(path) for path in paths}
        lock = None
        if beside is not None:
            if (beside / PROJECT_FILE).is_file():
                files[PROJECT_FILE] = sha256_of(beside / PROJECT_FILE)
            if (beside / LOCK_FILE).is_file():
                lock = sha256_of(beside / LOCK_FILE)
        version = _version_of((package / "__init__.py").read_bytes())
    except OSError as reason:
        raise SetupError(f"{reason.filename} cannot be read: {reason.strerror}.") from None
    return Manifest(FORMAT, version, files, lock, image)


def _files_of(package: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(package, onerror=_raise):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                raise SetupError(f"{path} is a link: what it leads to is not part of the source.", hint="Remove it.")
        for name in sorted(names):
            path = Path(folder, name)
            if path == package / PROJECT_FILE:
                continue  # says how to install the package, and is not installed with it
            # Python would import it, and it cannot be compared with a source.
            if path.suffix in (".pyc", ".pyo"):
                raise SetupError(f"{path} is compiled code without a source.", hint="Remove it.")
            if not path.is_file():
                raise SetupError(f"{path} is not a plain file.", hint="Remove it.")
            yield path


def _raise(error: OSError) -> None:
    raise error


def _version_of(source: bytes) -> str:
    """`__version__ = "…"`, read without running anything."""
    try:
        for statement in ast.parse(source).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(version))):
                    return version
    except (SyntaxError, ValueError):
        pass
    raise SetupError(f"{PACKAGE}/__init__.py does not say which version it is.")


def _checked(manifest: Manifest) -> Manifest:
    try:
        return read_manifest(manifest.encoded())
    except (EvidenceInvalid, UnicodeEncodeError) as wrong:
        raise SetupError(f"No manifest can be made of this source tree: {wrong}") from None


_RELEASE = re.compile(
    r"cloister release\n([0-9A-Za-z][0-9A-Za-z.+!-]{0,63})\nsha256:([0-9a-f]{64})\n(?:expires (\d{4}-\d\d-\d\d)\n)?"
)
_CLOUD = re.compile(r"cloister cloud\nsha256:([0-9a-f]{64})\n")
_NODE = re.compile(r"cloister node\n(https?://[!-~]{1,150})\n([0-9a-f]{64})\n")
_REVOCATION = re.compile(r"cloister revocation\nsha256:([0-9a-f]{64})\n")


@dataclass(frozen=True)
class Published:
    """A release with this measurement; `expires` is the last day on which a client accepts it."""

    version: str
    measurement: bytes
    expires: date | None = None

    def encoded(self) -> bytes:
        last = f"expires {self.expires.isoformat()}\n" if self.expires else ""
        return f"cloister release\n{self.version}\nsha256:{self.measurement.hex()}\n{last}".encode()


@dataclass(frozen=True)
class Revoked:
    measurement: bytes

    def encoded(self) -> bytes:
        return f"cloister revocation\nsha256:{self.measurement.hex()}\n".encode()


@dataclass(frozen=True)
class CloudListed:
    """From here on the cloud is the one that this document lists: its nodes and the keys of its tokens."""

    digest: bytes

    def encoded(self) -> bytes:
        return f"cloister cloud\nsha256:{self.digest.hex()}\n".encode()


@dataclass(frozen=True)
class NodeNamed:
    """From here on the node at this address is the process whose evidence states this `instance`. That process has one
    channel key at a time, so all users get one and the same."""

    url: str
    instance: bytes

    def encoded(self) -> bytes:
        return f"cloister node\n{self.url}\n{self.instance.hex()}\n".encode()


Entry = Published | Revoked | CloudListed | NodeNamed


def entry_of(manifest: bytes, expires: date | None = None) -> bytes:
    return Published(read_manifest(manifest).version, measurement(manifest), expires).encoded()


def read_entry(entry: bytes) -> Entry | None:
    try:
        text = entry.decode("ascii")
        if found := _RELEASE.fullmatch(text):
            last = date.fromisoformat(found[3]) if found[3] else None
            return Published(found[1], bytes.fromhex(found[2]), last)
        if found := _REVOCATION.fullmatch(text):
            return Revoked(bytes.fromhex(found[1]))
        if found := _CLOUD.fullmatch(text):
            return CloudListed(bytes.fromhex(found[1]))
        if found := _NODE.fullmatch(text):
            return NodeNamed(found[1], bytes.fromhex(found[2]))
    except ValueError:
        pass
    return None
