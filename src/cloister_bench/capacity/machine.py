"""What one machine does with one model, as JSON. Numbers are measured (measure.py) or cited; none is a guess."""

from bisect import bisect_left
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.errors import SetupError
from cloister.files import read_bounded
from cloister.levels import LEVELS, LevelName

MOST_BYTES = 1 << 20
PACKAGED = Path(__file__).parent / "machines"
_Seconds = Annotated[float, Meta(ge=0, le=3600)]
_Positive = Annotated[float, Meta(gt=0, le=3600)]
_Rate = Annotated[float, Meta(gt=0, le=1e6)]
_Count = Annotated[int, Meta(ge=1, le=1 << 40)]
_Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
_Text = Annotated[str, Meta(min_length=1, max_length=500)]


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    rows: _Count
    seconds: _Positive


class LevelProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """Of one level. `first_s`: of the first token's time, what takes no turn on the cores. A piece of a prompt takes
    `piece_s`, and `token_s` for each token. `request_s`, `vault_s`: what each request and each fresh vault take from
    the cores beside the model. `context_s`: what a step takes more for each token that its rows look back on.
    `max_context`, unless 0: below the node's."""

    first_s: _Seconds
    piece_s: _Seconds
    token_s: _Positive
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=64)]
    context_s: _Seconds = 0.0
    request_s: _Seconds = 0.0
    vault_s: _Seconds = 0.0
    max_context: Annotated[int, Meta(ge=0, le=1 << 40)] = 0

    def __post_init__(self) -> None:
        if [step.rows for step in self.steps] != sorted({step.rows for step in self.steps}):
            raise ValueError("The rows of steps do not rise.")

    def step_s(self, rows: int, context: float = 0.0) -> float:
        """Linear between the measured numbers of rows, and as steep behind them."""
        steps, looked = self.steps, self.context_s * context
        if len(steps) == 1:
            return steps[0].seconds * max(1.0, rows / steps[0].rows) + looked
        place = min(max(bisect_left(steps, rows, key=lambda step: step.rows), 1), len(steps) - 1)
        low, high = steps[place - 1], steps[place]
        slope = max(0.0, (high.seconds - low.seconds) / (high.rows - low.rows))
        return max(low.seconds + slope * (rows - low.rows), low.seconds / 2) + looked


def mean_profile(one: LevelProfile, other: LevelProfile) -> LevelProfile:
    """Of two measurements with the same rows, one before and one after what they are compared with."""
    names = ("first_s", "piece_s", "token_s", "context_s", "request_s", "vault_s")
    middle = {name: (getattr(one, name) + getattr(other, name)) / 2 for name in names}
    pairs = zip(one.steps, other.steps, strict=True)
    steps = tuple(Step(first.rows, (first.seconds + second.seconds) / 2) for first, second in pairs)
    return LevelProfile(**middle, steps=steps, max_context=one.max_context)


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """A node's settings that bound what it takes at once: the defaults of `cloister serve`."""

    max_running: _Count = 64
    max_vaults: _Count = 64
    spare_vaults: Annotated[int, Meta(ge=0, le=4096)] = 2
    max_waiting: _Count = 1024
    chunk_tokens: _Count = 512
    kv_tokens: _Count = 1 << 20
    max_context: _Count = 8192
    drain_s: _Seconds = 30.0


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """Resident bytes: of an idle node with its spare vaults, of each vault more, of a token's keys and values."""

    node: _Bytes
    vault: _Bytes
    token: _Bytes


class Machine(Struct, frozen=True, forbid_unknown_fields=True):
    """`noise`: what ran beside the measurement. `vault_start_s`: from the order of a vault until it is sealed."""

    format: Literal["cloister-machine/v1"]
    model: _Text
    processor: _Text
    cores: _Count
    measured: _Text
    source: _Text
    noise: _Text
    levels: dict[LevelName, LevelProfile]
    vault_start_s: _Seconds
    memory: Memory | None = None
    limits: Limits = Limits()
    redeemed_per_s: _Rate = 3600.0
    issued_per_s: _Rate = 3600.0

    def profile(self, level: LevelName) -> LevelProfile:
        if level not in self.levels:
            hint = f"It has {', '.join(self.levels)}. Measure it with: cloister plan measure --levels {level}"
            raise SetupError(f"The machine was not measured at the level {level}.", hint=hint)
        return self.levels[level]

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def decode_machine(data: bytes, name: str = "The machine") -> Machine:
    try:
        made = msgspec.json.decode(data, type=Machine)
    except msgspec.MsgspecError as wrong:
        hint = "`cloister plan measure` writes one."
        raise SetupError(f"{name} is no profile of a machine: {wrong}", hint=hint) from None
    if not made.levels:
        raise SetupError(f"{name} was measured at no level.", hint="Measure it again.")
    return made


def find_machine(named: str) -> Machine:
    """A file, or the name of a profile that is packaged."""
    packaged = PACKAGED / f"{named}.json"
    if named in packaged_names():
        return decode_machine(packaged.read_bytes(), named)
    hint = f"Packaged are: {', '.join(packaged_names()) or 'none'}. `cloister plan measure` writes one of a live node."
    return decode_machine(read_bounded(Path(named), MOST_BYTES, hint=hint), named)


def packaged_names() -> list[str]:
    return sorted(path.stem for path in PACKAGED.glob("*.json"))


def reads_in_vault(level: LevelName) -> bool:
    return LEVELS[level].uses_vault
