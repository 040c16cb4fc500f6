"""The lock file of a release's packages: `name==version sha256:…` lines, and `kernels sha256:… <what built them>`. A
package's hash is of its RECORD's names and hashes: the same anywhere. `process/release_code.py` compares."""

from __future__ import annotations

import re

from msgspec import Struct

from cloister.errors import SetupError

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
            raise SetupError(
                f"Line {number} of the lock file names no package by its hash.", hint="Make it: cloister release lock."
            )
        if match[1] == "kernels":
            kernels[match[2]] = match[3]
        elif packages.setdefault(match[1], match[2]) != match[2]:
            raise SetupError(f"Line {number} of the lock file contradicts an earlier one.")
    return Packages(packages, kernels)
