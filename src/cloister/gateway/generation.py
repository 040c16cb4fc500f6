"""All choices of one request as one sequence of events. Once the backend has the job, no reference to its prompt."""

import asyncio
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import InitVar, dataclass, field

from msgspec.structs import replace
from starlette.types import Receive

from cloister.backend.base import Backend, Job, OpenJob, VaultJob
from cloister.backend.stream import TokenStream
from cloister.errors import ServiceUnavailable
from cloister.gateway.choice import Choice, Delta
from cloister.gateway.metrics import Metrics
from cloister.messages.generation import Tokens

Winnow = Callable[[int], int]  # from the number of streams to the index of the real one (obfuscation.index.Order)
MOST = 4096
KEPT_S = 60.0


@dataclass(slots=True)
class WatchedAnswer:
    id: str
    tenant: str
    level: str
    requests: dict[int, int] = field(default_factory=dict)
    ended: float | None = None


class WatchedAnswers:
    """The answers under way and those that ended a short while ago. When there are too many, the oldest go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: OrderedDict[str, WatchedAnswer] = OrderedDict()
        self._ended: OrderedDict[str, WatchedAnswer] = OrderedDict()

    def begin(self, answer: WatchedAnswer) -> None:
        self._forget_old()
        while len(self._running) + len(self._ended) >= MOST:
            (self._ended or self._running).popitem(last=False)
        self._running[answer.id] = answer

    def end(self, answer: WatchedAnswer) -> None:
        answer.ended = self._clock()
        if self._running.pop(answer.id, None) is not None:
            self._ended[answer.id] = answer

    def find(self, answer_id: str, tenant: str) -> WatchedAnswer | None:
        self._forget_old()
        answer = self._running.get(answer_id) or self._ended.get(answer_id)
        return answer if answer is not None and answer.tenant == tenant else None

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_S
        while self._ended:
            first = next(iter(self._ended.values()))
            if first.ended is None or first.ended >= oldest:
                return
            self._ended.popitem(last=False)


class ClientGone(Exception):
    """The client closed its connection."""


@dataclass(eq=False, repr=False)
class Generation:
    """At `obfuscated` all choices are streams of one request, of which one is real. The end of one stream must not end
    the request, or the service would see which one is real: ends are held back until every stream has ended."""

    _backend: Backend
    _answer: WatchedAnswer
    choices: list[Choice]
    jobs: InitVar[Sequence[Job]]
    _watched: WatchedAnswers
    _metrics: Metrics
    _winnow: Winnow | None = None

    def __post_init__(self, jobs: Sequence[Job]) -> None:
        self._hides = any(isinstance(job, VaultJob) and job.obfuscation is not None for job in jobs)
        self._jobs = {choice.prompt: job for choice, job in zip(self.choices, jobs, strict=True)}
        self._prompt_tokens = {n: len(job.prompt) for n, job in self._jobs.items() if isinstance(job, OpenJob)}
        self._mail: list[tuple[Choice | None, Tokens | Exception]] = []
        self._reader: asyncio.Future[None] | None = None
        self._carriers: dict[int, asyncio.Task[None]] = {}
        self._streams: list[TokenStream] = []
        self._unfinished = len(self.choices)

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompt_tokens.values())

    @property
    def cached_tokens(self) -> int:
        """Of several answers to a prompt the one that found least counts: others may have found what it computed."""
        found: dict[int, int] = {}
        for choice in self.choices:
            found[choice.prompt] = min(choice.cached_tokens, found.get(choice.prompt, choice.cached_tokens))
        return sum(found.values())

    @property
    def output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self.shown)

    @property
    def made_tokens(self) -> int:
        """Of all streams, for totals, which therefore do not depend on which one is real."""
        return sum(choice.output_tokens for choice in self.choices)

    @property
    def hidden_among(self) -> int | None:
        return len(self.choices) if self._hides else None

    @property
    def shown(self) -> list[Choice]:
        if not self._hides or self._winnow is None:
            return self.choices
        return [self.choices[self._winnow(len(self.choices))]]

    def taken(self, choices: Iterable[Choice]) -> list[tuple[int, Delta]]:
        """New text of the choices that are shown. At `obfuscated` all are returned, so that timing singles none out."""
        places = {id(choice): place for place, choice in enumerate(self.shown)}
        taken = self.shown if self._hides else choices
        new = [(places[id(choice)], choice.take()) for choice in taken if id(choice) in places]
        for _, delta in new:
            if self._hides and not self.done:
                delta.finish = None
        return new

    @asynccontextmanager
    async def running(self, receive: Receive) -> AsyncIterator[None]:
        """Generate until the block ends; a client that leaves ends it, too. Choices that still run are cancelled."""
        self._metrics.began(self, self._answer.level)
        self._watched.begin(self._answer)
        first = [asyncio.create_task(self._begin(prompt)) for prompt in self._jobs]
        first.append(asyncio.create_task(self._watch(receive)))
        try:
            yield
        finally:
            await _end(first)
            await _end(self._carriers.values())
            for stream in self._streams:  # a task that ends before it begins closes nothing
                await stream.aclose()
            self._jobs.clear()
            self._watched.end(self._answer)
            self._metrics.ended(self, self.prompt_tokens, self.made_tokens)

    async def news(self) -> list[Choice]:
        """Raises the backend's error, or ClientGone."""
        await self.arrival()
        return self.read()

    async def arrival(self) -> None:
        """Wait until there is something to read."""
        if not self._mail:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def read(self) -> list[Choice]:
        """The choices that have something new, possibly none. Raises as `news` does."""
        mail, self._mail = self._mail, []
        concerned: list[Choice] = []
        for choice, message in mail:
            if isinstance(message, Exception):
                raise message
            if choice is None or choice.finish is not None:
                continue
            choice.push(message)
            if choice not in concerned:
                concerned.append(choice)
            if choice.finish is not None:
                self._unfinished -= 1
                if message.finish is None and not self._hides:
                    self._carriers[choice.index].cancel()
        self._metrics.progressed(self, self.made_tokens)
        return concerned

    def _put(self, choice: Choice | None, message: Tokens | Exception) -> None:
        self._mail.append((choice, message))
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _begin(self, prompt: int) -> None:
        """Start all choices of one prompt; the job leaves this object."""
        choices = [choice for choice in self.choices if choice.prompt == prompt]
        try:
            params = [choice.params for choice in (choices[:1] if self._hides else choices)]
            for choice in choices:  # as the job, the form leaves this object
                choice.params = replace(choice.params, grammar="")
            streams = await self._backend.generate_all(self._answer.tenant, self._jobs.pop(prompt), params)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # their locals hold the prompt
            self._put(choices[0], error)
            return
        self._streams += streams
        self._prompt_tokens.setdefault(prompt, streams[0].prompt_tokens)
        if self._hides:
            del self.choices[streams[0].sequences :]
            self._unfinished = len(self.choices)
        groups = [self.choices] if self._hides else [[choice] for choice in choices]
        for group, stream in zip(groups, streams, strict=True):
            self._answer.requests[group[0].index] = stream.request_id
            self._carriers[group[0].index] = asyncio.create_task(self._carry(group, stream))

    async def _carry(self, choices: Sequence[Choice], stream: TokenStream) -> None:
        """Hidden streams end together: the backend computes each past its own end, where it is cut here."""
        try:
            async with aclosing(stream):
                async for message in stream:
                    choice = choices[message.sequence if self._hides else 0]
                    self._put(choice, _cut(message, choice.params.stop_tokens) if self._hides else message)
                    if message.finish is not None:
                        for each in choices if self._hides else ():  # a choice that has finished ignores this
                            self._put(each, Tokens(message.request_id, finish="length", sequence=message.sequence))
                        return
            raise ServiceUnavailable("The service ended the answer early.", hint="Try again.")
        except Exception as error:
            self._put(choices[0], error)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._put(None, ClientGone())


def _cut(message: Tokens, stop_tokens: Sequence[int]) -> Tokens:
    at = next((at for at, token in enumerate(message.tokens, 1) if token in stop_tokens), None)
    if at is None:
        return replace(message, finish=None)
    logprobs = None if message.logprobs is None else message.logprobs[:at]
    return replace(message, tokens=message.tokens[:at], logprobs=logprobs, finish="stop")


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    if ending := [task for task in tasks if not task.done()]:
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
