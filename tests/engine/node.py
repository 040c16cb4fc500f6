"""What the engine's tests share: an engine over the fake runner, and the answers it gives."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

import msgspec

from cloister.config import EngineSettings
from cloister.engine.base import Engine, EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.fairness import Pace
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.types import Partition, SamplingParams, TokenLogprob
from cloister.prefix.base import PrefixCache
from tests.engine.fake_runner import FakeRunner


@dataclass
class Answer:
    """Everything one request was sent."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: str | None = None
    failed: Failed | None = None
    cached: int = field(default=0, compare=False)
    vector: bytes = b""

    def take(self, message: Tokens | Failed) -> None:
        assert self.finish is None and self.failed is None, "a message after the last"
        if isinstance(message, Failed):
            self.failed = message
            return
        self.tokens += message.tokens
        self.logprobs += message.logprobs or ()
        self.cached += message.cached
        if message.prompt_logprobs is not None:
            assert len(self.tokens) <= 1, "prompt logprobs come first"
            self.prompt_logprobs = (*(self.prompt_logprobs or ()), *message.prompt_logprobs)
        self.finish, self.vector = message.finish, message.vector


class SetPace(Pace):
    """Steps of set sizes, whatever the clock says."""

    def __init__(self, short: int, long: int) -> None:
        super().__init__(long)
        self._sizes = short, long

    @property
    def short(self) -> int:
        return self._sizes[0]

    @property
    def long(self) -> int:
        return self._sizes[1]


def make_engine(
    runner: FakeRunner | None = None, prefix: PrefixCache | None = None, pace: Pace | None = None, **settings: int
) -> PagedEngine:
    """With steps of one size, unless told otherwise: how long they take on this machine changes nothing."""
    made = EngineSettings(**settings)  # type: ignore[arg-type]
    return PagedEngine(runner or FakeRunner(), made, prefix, pace or SetPace(made.chunk_tokens, made.chunk_tokens))


def request(number: int, prompt: Iterable[int], tenant: str = "a", **params: object) -> EngineRequest:
    params.setdefault("max_tokens", 8)
    return EngineRequest(number, tenant, tuple(prompt), SamplingParams(**params), policy="partition")  # type: ignore[arg-type]


def drain(engine: Engine, answers: dict[int, Answer] | None = None, limit: int = 20_000) -> dict[int, Answer]:
    """Step until there is no work."""
    answers = {} if answers is None else answers
    for _ in range(limit):
        if not engine.has_work:
            return answers
        for message in engine.step():
            answers.setdefault(message.request_id, Answer()).take(message)
    raise AssertionError("the engine does not come to an end")


def answers_to(engine: PagedEngine, requests: Iterable[EngineRequest]) -> dict[int, Answer]:
    """EngineRequest all at once and wait for all."""
    for submit in requests:
        assert engine.submit(submit) == Accepted(submit.request_id)
    answers = drain(engine)
    stats = engine.stats()
    assert stats.running == stats.waiting == 0
    return answers


def alone(submit: EngineRequest, **runner: int) -> Answer:
    """What a request gives by itself in an engine with room for everything; computed once for all tests that ask."""
    asked = msgspec.msgpack.encode((submit, runner))
    if asked not in _ALONE:
        engine = make_engine(FakeRunner(num_blocks=4096, **runner), chunk_tokens=4096)
        _ALONE[asked] = answers_to(engine, [submit])[submit.request_id]
    return deepcopy(_ALONE[asked])


_ALONE: dict[bytes, Answer] = {}


def split(submit: EngineRequest, runner: FakeRunner, *, public: int = 0, link: int = 0, slot: int = 0) -> EngineRequest:
    """The same request with its prompt after `public` in a vault, which has chosen the first token."""
    params, length = submit.params, len(submit.prompt)
    runner.vaults[(link, slot)] = list(submit.prompt)
    first = alone(msgspec.structs.replace(submit, params=msgspec.structs.replace(params, max_tokens=1))).tokens[0]
    if runner.relative:
        origin, rotation = 0, length if public else 0
    else:
        origin, rotation = length, 0
    left = min(params.max_tokens, runner.max_context - length)  # only the vault knows the prompt's length
    return msgspec.structs.replace(
        submit,
        prompt=submit.prompt[:public],
        params=msgspec.structs.replace(params, max_tokens=left),
        public=public,
        partitions=(Partition(link, slot, first, origin, rotation),),
    )


def without_first(whole: Answer) -> Answer:
    """What is left to say of an answer whose first token somebody else has delivered."""
    return Answer(whole.tokens[1:], whole.logprobs[1:], None, whole.finish)
