"""Messages around a computation on shares: no code, no names. Results go to the session's own connection alone."""

from typing import Annotated, Literal, Self

from msgspec import Meta, Struct

from cloister.errors import CloisterError
from cloister.messages.types import Digest, Message, SilentRepr
from cloister_mpc.cache.plan import CachePlan

VERSION = 3
CHUNK_BYTES = 1 << 20

Token16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Rank = Annotated[int, Meta(ge=0, le=2)]
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=0, le=2**40)]
Variable = Annotated[str, Meta(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+){0,4}$", max_length=64)]
DataType = Literal["float32", "int32", "int64"]
Dims = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31 - 1)], ...], Meta(max_length=5)]
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=1024)]
Json = Annotated[bytes, Meta(max_length=65536)]
Chunk = Annotated[bytes, Meta(min_length=1, max_length=CHUNK_BYTES)]

Answer = Literal["token", "sampled", "logits"]
"""What a client gets of a pass: the likeliest token's number, a sampled one's, or all logits (for it alone)."""

RunKind = Literal["prefill", "step"]


class _OfSession(Message, frozen=True):
    """`session` names a generation; it is the same at every party, drawn at random by the client."""

    session: Token16


class _OfEpoch(Message, frozen=True):  # `epoch` counts the lives of the engines, which begin and end together
    epoch: Number


class GenerationSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """All that is public of a generation: parties compile programs from it, the shape and their own code."""

    prompt_tokens: Annotated[int, Meta(ge=16, le=65_536, multiple_of=16)]  # a bucket (shape.bucket_of)
    new_tokens: Annotated[int, Meta(ge=1, le=65_536)]
    cache: CachePlan = CachePlan(method="full")
    answer: Answer = "token"


class ShareHead(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a secret by its share: how large it is."""

    name: Variable
    dtype: DataType
    dims: Dims


# Dealer ↔ party.


class Hello(Message, frozen=True, tag="hello"):  # dealer → party, first
    version: int


class Welcome(Message, frozen=True, tag="welcome"):  # party → dealer, after Hello and AskStatus: who it is and how
    version: int
    rank: Rank
    agreement: Digest  # of the settings that all parties must have in common
    epoch: Number
    ready: bool
    model: Short
    sessions: Number
    missing: Short  # what it waits for, in words, when it is not ready
    shape: Json = b""  # shape.ModelShape of the model, once it has one


class AskStatus(Message, frozen=True, tag="ask_status"): ...  # Dealer → party: say it again


class Open(_OfSession, frozen=True, tag="open"):  # client → party: a generation to this spec
    spec: GenerationSpec


class Opened(_OfSession, frozen=True, tag="opened"):  # party → client: programs are compiled; shares may come
    epoch: Number


class Put(_OfSession, frozen=True, tag="put"):  # client → party: a share follows in Pieces, in order
    head: ShareHead


class Piece(SilentRepr, _OfSession, frozen=True, tag="piece"):
    """More bytes of the share last announced, in either direction."""

    data: Chunk


class Run(_OfSession, frozen=True, tag="run"):
    """Client → party: go on, with what was put. `number` counts the session's runs from 0."""

    number: Number
    kind: RunKind
    at: Number = 0  # position of a step's first token
    columns: Annotated[int, Meta(ge=1, le=1024)] = 1


class Progress(_OfSession, frozen=True, tag="progress"):
    """Party → client: `done` of this run's `total` programs have run."""

    number: Number
    done: Number
    total: Number


class Result(_OfSession, frozen=True, tag="result"):  # party → client: its share of a result follows in Pieces
    head: ShareHead
    storage: Annotated[str, Meta(pattern=r"^[a-z0-9]+\.[AB]Shr<[A-Z0-9_,]+>$", max_length=64)]
    size: Annotated[int, Meta(ge=1, le=2**32)]


class Done(_OfSession, frozen=True, tag="done"):  # party → client: the run is over and its results were sent
    number: Number


class Close(_OfSession, frozen=True, tag="close"): ...  # Client → party: forget the session. Unknown ones are ignored


class Refused(Message, frozen=True, tag="refused"):
    """Party → dealer: the session (or, without one, the connection) is over; a code of errors.py and our own words."""

    code: Short
    message: Text
    hint: Text = ""
    session: Token16 | None = None

    @classmethod
    def of(cls, reason: CloisterError, session: bytes | None = None) -> Self:
        return cls(reason.code, reason.message, reason.hint or "", session)


# Provider ↔ party.


class Weight(Message, frozen=True, tag="weight"):
    """A party's share of a matrix. `tag`: a keyed digest, its provider's; shares of two `dealing`s do not fit."""

    head: ShareHead
    tag: Digest
    dealing: Token16


class AskWeights(Message, frozen=True, tag="ask_weights"): ...  # Provider → party: what do you have?


class HeldWeights(Message, frozen=True, tag="held_weights"):  # party → provider: this
    weights: Annotated[tuple[Weight, ...], Meta(max_length=65536)]


class WeightPiece(SilentRepr, Message, frozen=True, tag="weight_piece"):
    """Provider → party: more bytes of the Weight last announced."""

    data: Chunk


class Stored(Message, frozen=True, tag="stored"):  # party → provider: this weight is stored, whole
    name: Variable


class Complete(Message, frozen=True, tag="complete"):  # provider → party: these are all. Answered by Serving
    model: Short
    shape: Json  # shape.ModelShape
    names: Annotated[tuple[Variable, ...], Meta(max_length=65536)]


class Serving(Message, frozen=True, tag="serving"):  # party → provider: weights are in the engine's memory
    model: Short


# Party ↔ party: rank 0 leads, the others follow.


class PartyHello(Message, frozen=True, tag="party_hello"):  # follower → leader, first, and the leader's answer
    version: int
    rank: Rank
    agreement: Digest


class Beat(Message, frozen=True, tag="beat"): ...  # Both ways, all the time: I live


class Prepare(SilentRepr, _OfEpoch, frozen=True, tag="prepare"):
    """End your engine; start one for this epoch. `key` begins every link: one of an earlier epoch is refused."""

    key: Token16


class WeightsReady(Message, frozen=True, tag="weights_ready"):
    """Follower → leader: it holds all weights; `digest` is of the model and of which dealings it holds."""

    digest: Digest


class Joined(_OfEpoch, frozen=True, tag="joined"): ...  # Follower → leader: connected, weights loaded


class Begin(_OfEpoch, frozen=True, tag="begin"): ...  # Leader → follower: all have joined; generations may begin


class Broken(_OfEpoch, frozen=True, tag="broken"):  # both ways: this epoch is over. `reason` is of our own words
    reason: Short


class Ready(_OfSession, frozen=True, tag="ready"):
    """Follower → leader: this run could begin here. `digest` is of spec, heads and order: all must have the same."""

    number: Number
    digest: Digest


class Turn(_OfSession, frozen=True, tag="turn"):  # leader → follower: this run is next, at all parties
    number: Number


class Withdraw(_OfSession, frozen=True, tag="withdraw"):  # leader → follower: no turn; the session is over
    differ: bool


# Party ↔ its engine (a child process).


class StartEngine(Message, frozen=True, tag="start_engine"):
    """Party → engine, first: settings, and the folder of its sockets."""

    settings: Json
    rank: Rank
    folder: Text


class StartTunnel(SilentRepr, StartEngine, frozen=True, tag="start_tunnel"):
    """Party → tunnel, first: the same, and the epoch's key."""

    key: Token16


class Listening(Message, frozen=True, tag="listening"): ...  # Engine or tunnel → party: it may be connected to


class Load(Message, frozen=True, tag="load"):
    """Party → engine: link with the others, take these files' shares as weights. `programs`: a folder, or ""."""

    shape: Json
    folder: Text
    weights: Annotated[tuple[Weight, ...], Meta(max_length=65536)]
    programs: Text = ""


class Loaded(Message, frozen=True, tag="loaded"): ...  # Engine → party: linked with all, weights in memory


class Established(Message, frozen=True, tag="established"):
    """Party → tunnel: all connections are made; from now on the end of one is the end of the tunnel."""


FromClient = Open | Put | Piece | Run | Close
FromProvider = AskWeights | Weight | WeightPiece | Complete
FromDealer = Hello | AskStatus | FromClient | FromProvider
ToDealer = Welcome | Opened | Progress | Result | Piece | Done | Refused | HeldWeights | Stored | Serving
FromFollower = PartyHello | Beat | WeightsReady | Joined | Broken | Ready
ToFollower = PartyHello | Beat | Prepare | Begin | Broken | Turn | Withdraw | Refused
FromVisitor = FromDealer | FromFollower
ToEngine = StartEngine | Load | Open | Put | Piece | Run | Close
FromEngine = Listening | Loaded | Opened | Progress | Result | Piece | Done | Refused
ToTunnel = StartTunnel | Established
FromTunnel = Listening
