"""A release's image, a cpio (newc) without owners or times. Reading back compares source and /init with the release."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import read_bounded
from cloister.transparency.manifest import MAX_MANIFEST_BYTES, PACKAGE, SOURCES, Manifest, measurement, read_manifest

PLACE = "opt/cloister"
MANIFEST = f"{PLACE}/release.json"
INIT = f"{PACKAGE}/image/init.sh"
FOLDER, FILE, LINK, DEVICE = 0o040755, 0o100644, 0o120777, 0o020600
_END = "TRAILER!!!"
_HEAD = 110
_COPIED = 1 << 20


@dataclass(frozen=True)
class Entry:
    name: str
    mode: int
    source: Path | None = None
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def write_image(root: Path, source: Path, manifest: bytes, out: BinaryIO) -> str:
    entries = {entry.name: entry for entry in _entries_of(root)}
    # What the kernel and /init ask for, whatever the root folder has.
    needed = [Entry(name, FOLDER) for name in ("dev", "proc", "run", "sys", "tmp")]
    needed += [Entry("dev/console", DEVICE, device=(5, 1)), Entry("dev/null", DEVICE, device=(1, 3))]
    for entry in (*_release_entries(source, manifest), *needed):
        if entry.mode != FOLDER and entry.name in entries:
            raise SetupError(f"The root folder has a file {entry.name}.", hint="Remove it: the release brings it.")
        entries.setdefault(entry.name, entry)
    whole = hashlib.sha256()
    for number, name in enumerate(sorted(entries), 1):
        for piece in _written(entries[name], number):
            whole.update(piece)
            out.write(piece)
    end = _head(Entry(_END, 0), 0, 0)
    whole.update(end)
    out.write(end)
    return whole.hexdigest()


def _entries_of(root: Path) -> Iterator[Entry]:
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in (*folders, *names):
            path = Path(folder, name)
            inside, mode = str(path.relative_to(root)), path.lstat().st_mode
            if stat.S_ISLNK(mode):
                yield Entry(inside, LINK, data=os.fsencode(path.readlink()))
            elif stat.S_ISDIR(mode):
                yield Entry(inside, FOLDER)
            elif stat.S_ISREG(mode):
                yield Entry(inside, FILE | (0o111 if mode & 0o100 else 0), path)
            else:
                raise SetupError(f"{path} is neither a file nor a folder nor a link.", hint="Remove it.")


def _unreadable(reason: OSError) -> NoReturn:
    """A folder that cannot be listed must not be left out in silence."""
    raise SetupError(f"The root folder {reason.filename} cannot be read: {reason.strerror}.", hint="Name one that can.")


def _release_entries(source: Path, manifest: bytes) -> Iterator[Entry]:
    yield from (Entry(name, FOLDER) for name in ("opt", PLACE))
    yield Entry(MANIFEST, FILE, data=manifest)
    files = read_manifest(manifest).files
    if INIT not in files:
        raise SetupError("This release brings no /init.", hint=f"Its source tree has no {INIT}.")
    folders: set[str] = set()
    for path, wanted in files.items():
        if path.startswith(SOURCES):
            data = read_bounded(source / path, 1 << 24)
            if hashlib.sha256(data).hexdigest() != wanted:
                raise SetupError(f"{source / path} is not the release's.", hint="Check out the release's source.")
            folders |= {str(each) for each in Path(PLACE, path).parents if str(each).startswith(PLACE + "/")}
            yield Entry(f"{PLACE}/{path}", FILE, data=data)
            if path == INIT:
                yield Entry("init", FILE | 0o111, data=data)
    yield from (Entry(name, FOLDER) for name in folders)


def _written(entry: Entry, number: int) -> Iterator[bytes]:
    if entry.source is None:
        yield _head(entry, number, len(entry.data)) + _padded(entry.data)
        return
    with entry.source.open("rb") as file:
        size = left = os.fstat(file.fileno()).st_size
        yield _head(entry, number, size)
        while left:
            piece = file.read(min(_COPIED, left))
            if not piece:
                raise SetupError(f"{entry.source} changed while the image was written.")
            left -= len(piece)
            yield piece if left else _padded(piece)


def _head(entry: Entry, number: int, size: int) -> bytes:
    """Linux, Documentation/driver-api/early-userspace/buffer-format.rst."""
    name = os.fsencode(entry.name) + b"\0"
    links = 2 if entry.mode == FOLDER else 1
    fields = (number, entry.mode, 0, 0, links, 0, size, 0, 0, *entry.device, len(name), 0)
    return _padded(b"070701" + b"".join(b"%08x" % each for each in fields) + name)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def release_in(image: BinaryIO) -> tuple[Manifest, bytes]:
    """The release that an image runs, and its measurement; every source file in it was compared. EvidenceInvalid."""
    found: dict[str, str] = {}
    manifest, init = b"", ""
    for name, data, digest in _contents(image):
        if name == MANIFEST:
            manifest = data
        elif name == "init":
            init = digest
        elif name.startswith(f"{PLACE}/{SOURCES}"):
            found[name.removeprefix(PLACE + "/")] = digest
    if not manifest:
        raise EvidenceInvalid("The image has no release in it.", hint="Build it: cloister release image.")
    release = read_manifest(manifest)
    wanted = {path: each for path, each in release.files.items() if path.startswith(SOURCES)}
    for path in sorted(found.keys() | wanted.keys()):
        if found.get(path) != wanted.get(path):
            raise EvidenceInvalid(f"{path} in the image is not the release's.")
    if init != wanted.get(INIT):
        raise EvidenceInvalid("/init in the image is not the release's.")
    return release, measurement(manifest)


def _contents(image: BinaryIO) -> Iterator[tuple[str, bytes, str]]:
    """Plain files by name: their bytes, if they are few, and their hash. A name may come once: the last one counts."""
    seen: set[str] = set()
    while True:
        head = image.read(_HEAD)
        if len(head) != _HEAD or head[:6] != b"070701":
            raise EvidenceInvalid("The image is no cpio archive (newc), or not whole.", hint="It is not compressed.")
        try:
            fields = [int(head[at : at + 8], 16) for at in range(6, _HEAD, 8)]
        except ValueError:
            fields = [0] * 13
        mode, size, name_size = fields[1], fields[6], fields[11]
        if not 1 < name_size <= 4096:
            raise EvidenceInvalid("The image's archive is damaged.")
        name = os.fsdecode(image.read(name_size + -(_HEAD + name_size) % 4)[: name_size - 1])
        if name == _END:
            if image.read(1):
                raise EvidenceInvalid("Something follows the image's archive, which the kernel would unpack, too.")
            return
        if os.path.normpath(name) != name or name.startswith(("/", "..")) or name in seen:
            raise EvidenceInvalid("A name in the image's archive is there twice, or leads elsewhere.")
        seen.add(name)
        few, digest, left = b"", hashlib.sha256(), size
        while left:
            piece = image.read(min(_COPIED, left))
            if not piece:
                raise EvidenceInvalid("The image's archive is not whole.")
            left -= len(piece)
            digest.update(piece)
            few = few + piece if len(few) + len(piece) <= MAX_MANIFEST_BYTES else few
        image.read(-size % 4)
        if stat.S_ISREG(mode):
            yield name, few, digest.hexdigest()
        elif any(name.startswith(place + "/") for place in (f"{PLACE}/src", MANIFEST)) or name == MANIFEST:
            if not stat.S_ISDIR(mode):
                raise EvidenceInvalid(f"{name} in the image is no plain file.")
        elif name in ("opt", PLACE, f"{PLACE}/src") and not stat.S_ISDIR(mode):
            raise EvidenceInvalid(f"{name} in the image leads elsewhere.")
