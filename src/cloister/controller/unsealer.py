"""Decrypts a provider's weights into a folder in memory and ends. If anything is not as sealed, the folder ends too."""

import ctypes
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from cloister.errors import ProtocolError, SetupError
from cloister.messages.controller_unsealer import Locked, Packed, ToUnsealer, Unseal, Unsealed
from cloister.messages.lifecycle import start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child
from cloister.process.sandbox.kernel import syscall
from cloister.process.sandbox.namespaces import map_onto_itself
from cloister.sealed_weights.file import WeightsBundle, read_provider_key

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 0x1, 0x2, 0x4, 0x8
_EMPTY_PATH = 0x1000
_PAGE = 4096


def path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


class MemoryFolder:
    """A tmpfs mounted nowhere, gone with its last descriptor, not swapped (`noswap`, if known). For one thread."""

    def __init__(self, capacity: int, files: int) -> None:
        try:
            _enter_own_namespaces()
            self.descriptor = _mounted(capacity + files * _PAGE, files)
        except OSError as wrong:
            raise SetupError(
                f"A folder in memory cannot be made: {wrong.strerror}.",
                hint="Sealed weights need Linux 5.12 or newer, and user namespaces or root.",
            ) from None

    def create(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o444, dir_fd=self.descriptor)

    def remove(self, suffix: str) -> None:
        """Their memory is free as soon as no process has them open."""
        for name in os.listdir(path_of(self.descriptor)):
            if name.endswith(suffix):
                os.unlink(name, dir_fd=self.descriptor)

    def lock(self) -> None:
        """From now on no process can write, not even the files' owner through this descriptor."""
        attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", _RDONLY, 0, 0, 0), 32)
        syscall("mount_setattr", self.descriptor, b"", _EMPTY_PATH, ctypes.byref(attributes), 32)


def _enter_own_namespaces() -> None:
    """Root could mount without this; others may mount only where they own the namespace."""
    if os.geteuid() == 0:
        with suppress(OSError):
            syscall("unshare", _NEWNS)
            return
    uid, gid = os.geteuid(), os.getegid()
    syscall("unshare", _NEWUSER | _NEWNS)
    map_onto_itself(uid, gid)


def _mounted(capacity: int, files: int) -> int:
    context = syscall("fsopen", b"tmpfs", _CLOEXEC)
    try:
        options = {"size": capacity, "nr_inodes": files + 8, "mode": "0755"}
        for name, value in options.items():
            syscall("fsconfig", context, _SET_STRING, name.encode(), str(value).encode(), 0)
        with suppress(OSError):  # the machine's root alone may forbid swapping, since Linux 6.4
            syscall("fsconfig", context, _SET_FLAG, b"noswap", None, 0)
        syscall("fsconfig", context, _CREATE, None, None, 0)
        return syscall("fsmount", context, _CLOEXEC, _NOSUID | _NODEV | _NOEXEC)
    finally:
        os.close(context)


PARAMETERS = ".safetensors"


def serve(line: BlockingEndpoint[Unseal | Packed]) -> None:
    order = line.next()
    if order is None:
        return
    try:
        if not isinstance(order, Unseal):
            raise ProtocolError("The controller sent a message out of turn.")
        folder = unseal(order)
        del order
        line.send(Unsealed(), folder.descriptor)
        if line.next() is None:
            return  # the controller has ended or hung up
        folder.remove(PARAMETERS)
        folder.lock()
        line.send(Locked())
    except Exception as reason:
        line.send(start_failed(reason, "The weights cannot be unsealed"))


def unseal(order: Unseal) -> MemoryFolder:
    bundle = WeightsBundle.open(Path(order.path), read_provider_key(order.provider))
    try:
        folder = MemoryFolder(bundle.header.total_bytes, len(bundle.header.files))
        bundle.unpack(order.content_key, lambda file: folder.create(file.name))
    finally:
        bundle.close()
    return folder


ROLE = "unsealer"


def main(control: socket.socket) -> None:
    serve(BlockingEndpoint(control, ToUnsealer))


if __name__ == "__main__":
    main(begin_child(ROLE))
