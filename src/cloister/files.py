"""Files that are complete or absent, files for their owner only, and a lock that ends with its process."""

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cloister.errors import CloisterError, SetupError

_ABOUT_THE_DISK = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room on that disk, then try again."),
    errno.EROFS: "That disk is mounted read-only: name another place.",
    errno.EIO: "The disk cannot be read or written.",
}


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, fresh: bool = False) -> None:
    with written_whole(path, mode=mode, fresh=fresh) as file:
        file.write(data)


@contextmanager
def written_whole(path: Path, *, mode: int = 0o644, fresh: bool = False) -> Iterator[BinaryIO]:
    """Readers see the old file or the new one, also after a crash. `fresh`: FileExistsError if there is one."""
    partial = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            os.link(partial, path)
            os.unlink(partial)
        else:
            os.replace(partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    sync(path.parent)


def read_bounded(
    path: Path, limit: int, *, hint: str | None = None, too_large: type[CloisterError] = SetupError
) -> bytes:
    with needed(f"{path} cannot be read", hint), path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise too_large(f"{path} is larger than {limit} bytes.", hint=hint)
    return data


def read_text(path: Path, limit: int, *, hint: str | None = None, wrong: type[CloisterError] = SetupError) -> str:
    """`wrong`: the error where the file is too large, or not UTF-8."""
    data = read_bounded(path, limit, hint=hint, too_large=wrong)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise wrong(f"{path} is not text.", hint=hint) from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_private(path: Path, data: bytes) -> None:
    """A key in a new file that its owner alone can read; an existing file is not overwritten."""
    with needed(f"The key cannot be written to {path}", "Name a new file."):
        make_folder(path.parent)
        write_whole(path, data, mode=0o600, fresh=True)


def read_private(path: Path, limit: int, what: str, hint: str | None = None) -> bytes:
    """The first `limit` bytes of a key's file. A file that other users could read or change is refused."""
    with needed(f"The {what} {path} cannot be read", hint), path.open("rb") as file:
        status = os.fstat(file.fileno())
        data = file.read(limit)
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise SetupError(f"Others may read or own the {what} {path}.", hint=f"chmod 600 {path}, or make a new key.")
    return data


def make_folder(folder: Path, *, mode: int = 0o755) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode)
        sync(each.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def needed(what: str, hint: str | None = None) -> Iterator[None]:
    """An OSError becomes a SetupError that begins with `what`. `hint` is for a wrong name, not for a disk at fault."""
    try:
        yield
    except OSError as reason:
        raise SetupError(f"{what}: {reason.strerror}.", hint=_ABOUT_THE_DISK.get(reason.errno or 0, hint)) from None


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold this lock file. The kernel releases it when the process ends, however it ends."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def held(path: Path, others: str, hint: str) -> int:
    """As `only_one`, until the descriptor is closed; SetupError that says `others` where another process holds it."""
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SetupError(others, hint=hint) from None
    return lock
