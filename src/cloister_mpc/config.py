"""The one TOML all parties and dealers share: who the parties are, where they are, what protocol they run."""

import hashlib
import math
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from cloister.errors import ProtocolError, SetupError
from cloister.link.network.address import Address
from cloister_mpc.messages import VERSION, ShareHead

T = TypeVar("T")
PARTIES = 3
KIND = "llama"  # model_type of the models that are computed on shares


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What dealers may ask for, and how patient a party is, in seconds."""

    sessions: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    prompt_tokens: Annotated[int, msgspec.Meta(ge=16)] = 4096
    new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 1024
    session_mib: Annotated[int, msgspec.Meta(ge=1)] = 2048  # of shares put for one session, over its life
    weights_mib: Annotated[int, msgspec.Meta(ge=1)] = 65536
    connections: Annotated[int, msgspec.Meta(ge=1)] = 32
    idle_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0  # a client that asks for nothing
    silence_s: Annotated[float, msgspec.Meta(gt=0)] = 20.0  # a party that does not beat
    run_silence_s: Annotated[float, msgspec.Meta(gt=0)] = 180.0  # an engine without progress; compiling is included
    start_s: Annotated[float, msgspec.Meta(gt=0)] = 180.0  # a new epoch, weights loaded


class PartyPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`shelf`, where given, keeps weights' shares over restarts; `programs` what was compiled, else the shelf does."""

    control: str
    link: str
    certificate: str
    key: str
    fingerprint: str = ""  # SHA-256 of the certificate, hex; pins it, so that not even the authority can replace it
    shelf: str = ""
    programs: str = ""


class PartiesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`base` is the folder the file lies in."""

    authority: str
    party: tuple[PartyPlace, ...]
    protocol: Literal["aby3"] = "aby3"  # evidence and files name both; there is no other choice
    beaver: Literal["multi_party"] = "multi_party"
    limits: Limits = Limits()
    base: str = "."

    def path(self, relative: str) -> Path:
        return Path(self.base) / relative

    @property
    def agreement(self) -> bytes:
        """Digest of what all parties must have in common: protocol, numbers, who the parties are."""
        common = (VERSION, self.protocol, self.beaver)
        places = [(place.control, place.link, place.fingerprint) for place in self.party]
        return hashlib.sha256(msgspec.json.encode((common, places))).digest()

    def identity(self) -> bytes:
        """Digest of all that says who the parties are: the agreement, and who signs their certificates."""
        path = self.path(self.authority)
        try:
            authority = path.read_bytes()
        except OSError as reason:
            raise SetupError(f"{path} cannot be read: {reason.strerror}.", hint="Copy the parties' `ca.crt`.") from None
        return hashlib.sha256(self.agreement + hashlib.sha256(authority).digest()).digest()


def read_config(file: Path) -> PartiesConfig:
    try:
        raw = msgspec.toml.decode(file.read_bytes())
    except OSError as reason:
        raise SetupError(
            f"{file} cannot be read: {reason.strerror}.", hint="`cloister mpc up` makes one for local parties."
        ) from None
    except msgspec.DecodeError as reason:
        raise SetupError(f"{file} is not TOML: {reason}.") from None
    try:
        config = msgspec.convert({**raw, "base": str(file.absolute().parent)}, PartiesConfig)
    except msgspec.ValidationError as reason:
        raise SetupError(f"{file}: {reason}.", hint="docs/mpc.md has an example.") from None
    _check(config, file)
    return config


def decode_settings(settings: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(settings, type=kind)
    except msgspec.MsgspecError:
        raise ProtocolError("Settings do not decode.") from None


def _check(config: PartiesConfig, file: Path) -> None:
    if len(config.party) != PARTIES:
        raise SetupError(f"{file}: {config.protocol} has {PARTIES} parties, not {len(config.party)}.")
    addresses = [Address.parse(text) for place in config.party for text in (place.control, place.link)]
    if any(not isinstance(address.host, str) or address.port == 0 for address in addresses):
        raise SetupError(f"{file}: every party needs fixed HOST:PORT addresses.")
    if len(set(addresses)) != len(addresses):
        raise SetupError(f"{file}: two addresses are the same.")


def config_text(config: PartiesConfig) -> str:
    lines = ["# The parties of a computation on shares; the same file for every party and dealer. See docs/mpc.md."]
    for name in ("protocol", "beaver", "authority"):
        value = getattr(config, name)
        lines.append(f"{name} = {_quoted(value)}")
    for rank, place in enumerate(config.party):
        lines += ["", f"[[party]]  # rank {rank}"]
        facts = msgspec.structs.asdict(place)
        lines += [f"{name} = {_quoted(value)}" for name, value in facts.items() if value]
    defaults = msgspec.structs.asdict(Limits())
    changed = {name: value for name, value in msgspec.structs.asdict(config.limits).items() if value != defaults[name]}
    if changed:
        lines += ["", "[limits]", *(f"{name} = {value}" for name, value in changed.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def share_bytes(head: ShareHead, element_bytes: int = 8) -> int:
    """Size of one party's share: two of the three elements of ABY3's replicated sharing, 64 bits where arithmetic."""
    return math.prod(head.dims) * 2 * element_bytes
