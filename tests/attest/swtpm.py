"""A real software TPM (swtpm, libtpms) in the place of Azure's: made ready as a paravisor leaves it."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.attest.azure_made import EMPTY_PASSWORD, sized

HCL_INDEX, KEY_HANDLE = 0x01400001, 0x81000003
OWNER, ENDORSEMENT = 0x40000001, 0x4000000B
PROGRAM = shutil.which("swtpm")


class SoftwareTpm:
    """The transport, and the commands a paravisor needs before a guest runs."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def transmit(self, command: bytes) -> bytes:
        self._line.sendall(command)
        head = self._line.recv(10, socket.MSG_WAITALL)
        rest = int.from_bytes(head[2:6], "big") - 10
        return head + (self._line.recv(rest, socket.MSG_WAITALL) if rest else b"")

    def make_attestation_key(self) -> rsa.RSAPublicKey:
        """A restricted RSA key that signs with RSASSA and SHA-256, where Azure has it."""
        attributes = 0x00050072  # restricted, sign, userWithAuth, sensitiveDataOrigin, fixedTPM, fixedParent
        public = struct.pack(">HHI", 1, 0x0B, attributes) + sized(b"")
        public += struct.pack(">HHHHI", 0x10, 0x14, 0x0B, 2048, 0) + sized(b"")
        asked = struct.pack(">I", ENDORSEMENT) + EMPTY_PASSWORD + sized(sized(b"") * 2) + sized(public)
        handle, answer = self._with_handle(0x131, asked + sized(b"") + struct.pack(">I", 0))
        size = int.from_bytes(answer[:2], "big")
        modulus = answer[2 : 2 + size][-256:]
        self._ask(0x120, struct.pack(">II", OWNER, handle) + EMPTY_PASSWORD + struct.pack(">I", KEY_HANDLE))
        return rsa.RSAPublicNumbers(65537, int.from_bytes(modulus, "big")).public_key()

    def write_index(self, data: bytes) -> None:
        """The paravisor's report, where Azure has it; the owner may read and write it."""
        public = struct.pack(">IHI", HCL_INDEX, 0x0B, 0x00020002) + sized(b"") + struct.pack(">H", len(data))
        self._ask(0x12A, struct.pack(">I", OWNER) + EMPTY_PASSWORD + sized(b"") + sized(public))
        for offset in range(0, len(data), 512):
            piece = sized(data[offset : offset + 512]) + struct.pack(">H", offset)
            self._ask(0x137, struct.pack(">II", OWNER, HCL_INDEX) + EMPTY_PASSWORD + piece)

    def extend(self, pcr: int, digest: bytes) -> None:
        self._ask(0x182, struct.pack(">I", pcr) + EMPTY_PASSWORD + struct.pack(">IH", 1, 0x0B) + digest)

    def startup(self) -> None:
        self._send(0x8001, 0x144, struct.pack(">H", 0))

    def _ask(self, code: int, body: bytes) -> bytes:
        answer = self._send(0x8002, code, body)
        return answer[4 : 4 + int.from_bytes(answer[:4], "big")]

    def _with_handle(self, code: int, body: bytes) -> tuple[int, bytes]:
        answer = self._send(0x8002, code, body)
        return int.from_bytes(answer[:4], "big"), answer[8:]

    def _send(self, tag: int, code: int, body: bytes) -> bytes:
        answer = self.transmit(struct.pack(">HII", tag, 10 + len(body), code) + body)
        assert answer[6:10] == bytes(4), f"command {code:#x}: {answer[6:10].hex()}"
        return answer[10:]


@contextmanager
def running_tpm(folder: Path) -> Iterator[SoftwareTpm]:
    """A new TPM that has started, with its state in this folder."""
    assert PROGRAM is not None
    place, control = folder / "tpm.socket", folder / "control.socket"
    command = [PROGRAM, "socket", "--tpm2", "--tpmstate", f"dir={folder}", "--flags", "not-need-init"]
    command += ["--server", f"type=unixio,path={place}", "--ctrl", f"type=unixio,path={control}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            _until(place.exists)
            line.connect(str(place))
            line.settimeout(30)
            tpm = SoftwareTpm(line)
            tpm.startup()
            yield tpm
    finally:
        process.kill()
        process.wait()


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("swtpm does not listen")
