"""The vault's process: take prompts, ask for cores, compute a piece, send the result. One thread of Python; questions
on the link are answered by a thread of C, until the service breaks the rules of the link. It ends when the controller
hangs up."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterable

import msgspec

from cloister.compute.base import LinkAnswerer
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.continuations import Continuations
from cloister.engine.graph_runner import runner_for
from cloister.engine.paged import PagedEngine
from cloister.engine.rehearsal import rehearse_device, rehearse_sampling
from cloister.engine.runner import Runner, blocks_within
from cloister.errors import ProtocolError
from cloister.levels import ISOLATED, LEVELS, MOST_FAKES, OBFUSCATED, PARTITIONED, Decodes, VaultLevel
from cloister.messages import controller_vault as wire
from cloister.messages.frames import FrameReader, encode_frame, encode_frames
from cloister.messages.generation import Cancel, Failed
from cloister.messages.lifecycle import Ping, Pong, failed
from cloister.messages.prompts import LockedPrompt
from cloister.messages.types import VERSION
from cloister.models.decoder import Decoder
from cloister.prompts.reading import PromptReading
from cloister.vault.answer_blocks import ANSWERS, AnswerBlocks
from cloister.vault.looks import Watching
from cloister.vault.obfuscating import Obfuscating
from cloister.vault.partitioned import Partitioned, SessionMemory
from cloister.vault.reading import Reader
from cloister.vault.verifying import Verifying

MAX_RUNNING = 16  # a row of logits is as long as the vocabulary, and a vault's memory is small


RECEIVE_BYTES = 1 << 20
READ_AT_ONCE = 8192  # bytes of a prompt that is read when it comes; a longer one waits for its turn at the cores
LOGITS_BYTES = 2 * 2**20  # at once while tokens are sampled, which holds about ten times as much
BYTES_LIKE_A_TOKEN = 1024  # to read this many takes about as long as to compute a token


def prepare(
    decoder: Decoder, reading: PromptReading, settings: EngineSettings, question_fd: int = -1, answer_fd: int = -1
) -> Vault:
    """All that a sealed process cannot do, but `start`. The caller closes the descriptors. Without them it can be made
    before a fork, once for all vaults: it holds no user's data, and `connect` makes what no two vaults may share."""
    blocks = blocks_within(decoder, settings.vault_kv_mib)
    behind = ANSWERS * blocks if settings.private_layers else 0
    cache = decoder.device.vault_cache(decoder.cache_shape, blocks + behind, question_fd)
    runner = runner_for(decoder, cache)
    runner.num_blocks = blocks
    if not decoder.device.survives_fork:
        rehearse_sampling(Continuations(decoder, cache, rows=_sampled_rows(decoder)))
        rehearse_device(runner, settings.model_copy(update={"max_running": min(settings.max_running, MAX_RUNNING)}))
    if decoder.device.partition_refusal(decoder):
        return Vault(decoder, reading, settings, runner, LinkAnswerer(), levels=(ISOLATED,))
    answerer = decoder.device.answerer(decoder, cache, question_fd, answer_fd)
    several = (OBFUSCATED,) if answerer.slots > MOST_FAKES else ()
    return Vault(decoder, reading, settings, runner, answerer, levels=(PARTITIONED, *several, ISOLATED))


def _sampled_rows(decoder: Decoder) -> int:
    return max(1, LOGITS_BYTES // (4 * decoder.vocabulary))


def _failed(request_id: int, error: Exception) -> Failed:
    if isinstance(error, MemoryError):
        raise error
    return failed(request_id, error)


def _request_ids(assigned: wire.AssignPrompt) -> tuple[int, ...]:
    return assigned.request_id, *(each.request_id for each in assigned.also)


def _prompt_bytes(assigned: wire.AssignPrompt) -> int:
    """As it came: not opened, and with its seal if it has one."""
    return len(assigned.prompt.data if isinstance(assigned.prompt, LockedPrompt) else assigned.prompt)


class Vault:
    def __init__(
        self,
        decoder: Decoder,
        reading: PromptReading,
        settings: EngineSettings,
        runner: Runner,
        answerer: LinkAnswerer,
        levels: tuple[VaultLevel, ...] = (PARTITIONED, OBFUSCATED, ISOLATED),
    ) -> None:
        self._answerer = answerer
        self._kernels = decoder.kernels
        own = settings.kind == "own"  # another takes no tokens of a prompt that it continues
        self._reader = Reader(reading, decoder, levels, compact=settings.compact_prompts, shows_public=own)
        self.memory = SessionMemory()
        few = settings.model_copy(update={"max_running": min(settings.max_running, MAX_RUNNING)})
        self._isolated, self._chunk = (
            PagedEngine(runner, few, self.memory, drafts=settings.speculate),
            settings.chunk_tokens,
        )
        answers = AnswerBlocks.behind(runner, decoder.private_layers)
        self._partitioned = Partitioned(runner, settings, self.memory, answerer, answers)
        model, rows = None, _sampled_rows(decoder)
        self._watching = Watching(decoder, reading, runner.cache if settings.watch_attention else None)
        longest, exposed = wire.MAX_CLAIMED if decoder.device.records else 0, self._partitioned.exposed
        self._verifying = Verifying(runner, self.memory, answerer, exposed, rows, self._watching, longest)
        if runner.cache is not None:
            model = Continuations(decoder, runner.cache, self.memory.pool, self.memory.make_room, rows)
        self._obfuscating = Obfuscating(self._reader, model, reading.tokenizer)
        self._wanted: wire.WantCores | None = None
        self._unread: deque[wire.AssignPrompt] = deque()
        self._cancelled: set[int] = set()  # of those that are not read yet

    def connect(self, question_fd: int, answer_fd: int) -> None:
        self._answerer.connect(question_fd, answer_fd)

    def start(self) -> None:
        self._answerer.start()

    @property
    def descriptors(self) -> set[int]:
        return {self._answerer.fileno()}

    def run(self, control: socket.socket) -> None:
        try:
            self._run(control)
        finally:
            self._answerer.leave()

    def _run(self, control: socket.socket) -> None:
        control.sendall(encode_frame((wire.VaultReady(VERSION),)))
        frames: FrameReader[wire.ToVault] = FrameReader(wire.ToVault)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._answerer.fileno(), select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._answerer.fileno() in ready:
                poll.unregister(self._answerer.fileno())
                control.sendall(encode_frame((wire.LinkBroken(self._answerer.verdict),)))
            if control.fileno() not in ready:
                continue
            data = control.recv(RECEIVE_BYTES)
            if not data:
                return
            if replies := self.handle(frames.feed(data)):
                control.sendall(encode_frames(tuple(replies)))

    def handle(self, messages: Iterable[wire.ToVault]) -> list[msgspec.Struct]:
        replies = [reply for message in messages for reply in self._do(message)]
        return replies + self._ask_for_cores()

    def _do(self, message: wire.ToVault) -> list[msgspec.Struct]:
        match message:
            case wire.AssignPrompt():
                return self._take(message)
            case Cancel(request_id=request_id) if self._leave_unread(request_id):
                return []
            case Cancel(request_id=request_id) | wire.Release(request_id=request_id):
                self._obfuscating.drop(request_id)
                self._verifying.drop(request_id)
                self._watching.answers.pop(request_id, None)
                self._partitioned.drop(request_id)
                self._isolated.cancel(request_id)
                return []
            case wire.Claimed(request_id=request_id, sequence=number, tokens=claimed):
                return list(self._verifying.claim(request_id, number, claimed))
            case wire.FinishAlone(request_id=request_id):
                self._verifying.finish_alone(request_id)
                return []
            case wire.Answered(request_id=request_id, streams=streams):
                self._obfuscating.answered(request_id, streams)
                return []
            case wire.LeaseCores(cores=cores, tokens=tokens):
                if self._wanted is None:
                    raise ProtocolError("Cores were given to a vault that did not ask for them.")
                reading, self._wanted = self._wanted.reading, None
                if reading:
                    read = self._read(self._unread.popleft()) if self._unread else []
                    return [*read, wire.CoresDone()]
                self._kernels.use_cores(cores)
                return [*self._work(tokens), wire.CoresDone()]
            case Ping():
                return [Pong()]

    def _take(self, assigned: wire.AssignPrompt) -> list[msgspec.Struct]:
        unread = {one for waiting in self._unread for one in _request_ids(waiting)}
        held = self._partitioned, self._isolated, self._obfuscating, unread
        if any(one in there for one in _request_ids(assigned) for there in held):
            raise ProtocolError("A request of this id is under way.")
        if _prompt_bytes(assigned) <= READ_AT_ONCE and not self._unread:
            return self._read(assigned)
        self._unread.append(assigned)
        return []

    def _read(self, assigned: wire.AssignPrompt) -> list[msgspec.Struct]:
        wanted = set(_request_ids(assigned)) - self._cancelled
        self._cancelled -= set(_request_ids(assigned))
        if LEVELS[assigned.level].obfuscates:
            return self._hide(assigned.request_id, assigned)
        try:
            requests, system = self._reader.read(assigned)
        except Exception as error:
            return [_failed(request_id, error) for request_id in _request_ids(assigned) if request_id in wanted]
        alone = assigned.params.embed or LEVELS[assigned.level].decodes is Decodes.VAULT
        if system is not None:
            self._watching.begin(wanted, system)
        return [self._queue(request, alone=alone) for request in requests if request.request_id in wanted]

    def _leave_unread(self, request_id: int) -> bool:
        """It is forgotten when all its requests are cancelled."""
        for assigned in self._unread:
            if request_id in _request_ids(assigned):
                self._cancelled.add(request_id)
                if self._cancelled.issuperset(_request_ids(assigned)):
                    self._cancelled -= set(_request_ids(assigned))
                    self._unread.remove(assigned)
                return True
        return False

    def _queue(self, *prompts: EngineRequest, alone: bool = False) -> wire.PromptAccepted | Failed:
        request_id = prompts[0].request_id
        try:
            if not alone:
                self._partitioned.add(*prompts)
            elif isinstance(verdict := self._isolated.submit(prompts[0]), Failed):
                return verdict
        except Exception as error:
            return _failed(request_id, error)
        return wire.PromptAccepted(request_id, max(len(one.prompt) for one in prompts), len(prompts))

    def _hide(self, request_id: int, assigned: wire.AssignPrompt | None = None) -> list[msgspec.Struct]:
        try:
            if assigned is not None:
                self._obfuscating.add(assigned)
            prompts = self._obfuscating.work(request_id)
        except Exception as error:
            self._obfuscating.drop(request_id)
            return [_failed(request_id, error)]
        return [self._queue(*prompts)] if prompts else []

    def _ask_for_cores(self) -> list[msgspec.Struct]:
        if self._wanted is not None:
            return []
        if self._unread:
            self._wanted = wire.WantCores(-(-_prompt_bytes(self._unread[0]) // BYTES_LIKE_A_TOKEN), reading=True)
        elif tokens := self._next_tokens:
            self._wanted = wire.WantCores(tokens)
        elif self._isolated.has_work or self._verifying.alone:
            isolated = min(self._chunk, max(self._isolated.remaining, 1)) if self._isolated.has_work else 0
            self._wanted = wire.WantCores(isolated + self._verifying.alone)
        return [] if self._wanted is None else [self._wanted]

    @property
    def _next_tokens(self) -> int:
        return self._verifying.next_tokens or self._obfuscating.next_tokens or self._partitioned.next_tokens

    def _work(self, most: int) -> list[msgspec.Struct]:
        """One piece, of `most` tokens: of claims, of the search for substitutes, of a prompt, or of answers."""
        if self._verifying.next_tokens:
            return list(self._verifying.work(most))
        if (hiding := self._obfuscating.next_request) is not None:
            self._obfuscating.allow(most)
            return self._hide(hiding)
        request_id = self._partitioned.next_request
        if request_id is None:
            isolated = self._isolated.step(min(most, self._chunk)) if self._isolated.has_work else ()
            return [*isolated, *self._verifying.go_on()]
        try:
            first = self._partitioned.work(request_id, most)
        except Exception as error:
            self._partitioned.drop(request_id)
            return [_failed(request_id, error)]
        return [] if first is None else [first]
