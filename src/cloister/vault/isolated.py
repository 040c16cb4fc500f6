"""Prompts at `isolated`: this vault generates the whole answer itself, with the engine of the service. The service gets
no message about it. Exposed prompts and the session's memory share the vault's blocks."""

from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import Runner
from cloister.messages.generation import Failed, Tokens
from cloister.messages.lifecycle import raised
from cloister.vault.partitioned import SessionMemory

MAX_RUNNING = 16  # a row of logits is as long as the vocabulary, and a vault's memory is small


class Isolated:
    def __init__(self, runner: Runner, settings: EngineSettings, memory: SessionMemory) -> None:
        most = min(settings.max_running, MAX_RUNNING)
        self._engine = PagedEngine(runner, settings.model_copy(update={"max_running": most}), memory)
        self._chunk = settings.chunk_tokens
        self._open: set[int] = set()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._open

    def add(self, request: EngineRequest) -> None:
        """Raises why it cannot be served."""
        verdict = self._engine.submit(request)
        if isinstance(verdict, Failed):
            raise raised(verdict)
        self._open.add(request.request_id)

    def drop(self, request_id: int) -> None:
        """One that is not here ended already."""
        self._engine.cancel(request_id)
        self._open.discard(request_id)

    @property
    def next_tokens(self) -> int:
        return min(self._chunk, max(self._engine.remaining, 1)) if self._open else 0

    def work(self, most: int) -> list[Tokens | Failed]:
        messages = self._engine.step(min(most, self._chunk))
        for message in messages:
            if isinstance(message, Failed) or message.finish is not None:
                self._open.discard(message.request_id)
        return messages
