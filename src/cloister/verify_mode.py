"""How much of what the service decodes a vault computes again (`--verify`). It knows no process and no request."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from cloister.errors import SetupError

ModeName = Literal["off", "sample", "late", "all"]
WHOLE: dict[str, tuple[ModeName, float]] = {"off": ("off", 0.0), "late": ("late", 1.0), "all": ("all", 1.0)}


@dataclass(frozen=True, slots=True)
class VerifyMode:
    """`share`: of requests that are verified."""

    name: ModeName
    share: float

    @classmethod
    def of(cls, text: str) -> "VerifyMode":
        if text in WHOLE:
            return cls(*WHOLE[text])
        with suppress(ValueError):
            if text.startswith("sample:") and 0 < (share := float(text.removeprefix("sample:"))) <= 1:
                return cls("sample", share)
        raise SetupError(
            "There is no such mode of verified decoding.", hint="--verify takes off, sample:0.1 (a share), late or all."
        )
