"""A release as a log has it: a short entry that names version and measurement, and the manifest in a file beside.

The manifest itself would outgrow the 64 KiB that C2SP allows an entry.
"""

from __future__ import annotations

from cloister.errors import EvidenceInvalid
from cloister.files import make_folder, needed, write_whole
from cloister.transparency.keys import SigningKey
from cloister.transparency.log import Log
from cloister.transparency.manifest import MAX_MANIFEST_BYTES, measurement, read_manifest

_KIND = b"cloister release\n"
_FOLDER = "manifest"


def entry_of(manifest: bytes) -> bytes:
    """The log entry of the release with this manifest, or EvidenceInvalid if it is none."""
    version = read_manifest(manifest).version
    return _KIND + f"{version}\nsha256:{measurement(manifest).hex()}\n".encode()


def measurement_in(entry: bytes) -> bytes | None:
    """The measurement an entry names; None if it is not a release's."""
    lines = entry.split(b"\n")
    if not entry.startswith(_KIND) or len(lines) != 4 or lines[3] or not lines[2].startswith(b"sha256:"):
        return None
    written = lines[2].removeprefix(b"sha256:")
    try:
        named = bytes.fromhex(written.decode("ascii"))
    except ValueError:
        return None
    return named if len(named) == 32 and named.hex().encode() == written else None


def publish(log: Log, manifest: bytes, key: SigningKey) -> tuple[int, bool]:
    """Put a release into the log unless it is there; its index, and whether it is new."""
    entry = entry_of(manifest)
    folder = log.folder / _FOLDER
    with needed(f"The manifest cannot be put into {folder}"):
        make_folder(folder)
        write_whole(folder / measurement(manifest).hex(), manifest)
    found = log.find(entry)
    return (log.append(entry, key), True) if found is None else (found, False)


def published_manifest(log: Log, measured: bytes) -> bytes:
    """The manifest with this measurement, as it lies beside the log."""
    try:
        with (log.folder / _FOLDER / measured.hex()).open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as reason:
        raise EvidenceInvalid(f"The log lacks the manifest {measured.hex()} ({reason.strerror}).") from None
    if measurement(data) != measured:
        raise EvidenceInvalid(f"The log's manifest {measured.hex()} is not what its name says.")
    return data
