"""How a request at the level `obfuscated` is to be hidden, and the secrets that its user gives its vault."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.levels import MOST_FAKES
from cloister.messages.types import SilentRepr

MAX_SECRETS = 64
MAX_STOPS, MAX_NAMES = 16, 3
INDEX_SECRET_BYTES = 32
Word = Annotated[str, Meta(min_length=1, max_length=512)]


class ObfuscationParams(Struct, frozen=True, forbid_unknown_fields=True):
    """λ, λ_min (0: λ), and how substitutes are sampled (obfuscation.gqs.Quantization). No secrets."""

    fakes: Annotated[int, Meta(ge=1, le=MOST_FAKES)] = 7
    minimum: Annotated[int, Meta(ge=0, le=MOST_FAKES)] = 0
    epsilon: Annotated[float, Meta(gt=0, le=100)] = 0.1
    distance: Literal["absolute", "relative"] = "absolute"
    candidates: Annotated[int, Meta(ge=1, le=512)] = 128
    temperature: Annotated[float, Meta(gt=0, le=10)] = 1.0
    regularise: bool = False
    auto_redact: bool = False


class ObfuscationSecrets(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """For the vault alone: the index's key, the user's substitutes (§3.3), texts where no secret may be."""

    index_secret: Annotated[bytes, Meta(min_length=INDEX_SECRET_BYTES, max_length=INDEX_SECRET_BYTES)]
    substitutes: Annotated[
        tuple[Annotated[tuple[Word, ...], Meta(max_length=MAX_SECRETS)], ...], Meta(max_length=MOST_FAKES)
    ] = ()
    stops: Annotated[tuple[str, ...], Meta(max_length=MAX_STOPS)] = ()
    names: Annotated[tuple[str, ...], Meta(max_length=MAX_NAMES)] = ()
