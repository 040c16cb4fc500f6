"""How much of what the service decodes a vault computes again (`--verify`). It knows no process and no request."""

from dataclasses import dataclass
from typing import Literal, get_args

from cloister.errors import SetupError

ModeName = Literal["off", "sample", "late", "all"]  # the weakest first


@dataclass(frozen=True, slots=True)
class VerifyMode:
    """`share`: of requests that are verified."""

    name: ModeName
    share: float

    @classmethod
    def of(cls, text: str) -> "VerifyMode":
        name, _, share = text.partition(":")
        if name == "sample":
            try:
                if 0 < float(share) <= 1:
                    return cls("sample", float(share))
            except ValueError:
                pass
        elif not share and name in get_args(ModeName):
            return cls(name, float(name != "off"))
        raise SetupError(
            "There is no such mode of verified decoding.", hint="--verify takes off, sample:0.1 (a share), late or all."
        )
