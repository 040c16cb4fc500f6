"""How Python processes are started: with the code that Python finds, or with a release's alone (release_code.py)."""

import fcntl
import json
import os
import sys

from cloister.process import release_code
from cloister.process.release_code import ReleaseCode

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def running() -> ReleaseCode | None:
    return release_code.running


def check_loaded() -> None:
    """End this process if it has loaded a file that is not of its release."""
    if (code := running()) is not None:
        code.check_loaded()


def python(module: str, *arguments: str) -> list[str]:
    """Limited as this process is. It needs the descriptors of `inherited`."""
    if (code := running()) is None:
        return [sys.executable, "-P", "-m", module, *arguments]
    return _of_the_release(code.descriptor, module, *arguments)


def inherited() -> list[int]:
    return [] if (code := running()) is None else [code.descriptor]


def python_of(manifest: bytes, module: str, *arguments: str) -> list[str]:
    """For the first process of a node, limited to this release. Its descriptor stays open for it."""
    content = json.dumps({"manifest": manifest.decode(), "folders": release_code.package_folders()}).encode()
    note = sealed_file("cloister-release", content)
    os.set_inheritable(note, True)
    return _of_the_release(note, module, *arguments)


def sealed_file(name: str, data: bytes, *, flags: int = 0) -> int:
    memory = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    with open(memory, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    return memory


def _of_the_release(note: int, module: str, *arguments: str) -> list[str]:
    return [sys.executable, *release_code.FLAGS, release_code.__file__, str(note), module, *arguments]
