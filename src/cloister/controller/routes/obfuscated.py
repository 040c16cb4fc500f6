"""`obfuscated`: as `partitioned`, with λ+1 sequences of one request ("Confidential Prompting", §5): the real prompt and
λ with other secrets, in an order that the vault and the user know. Nothing here depends on it."""

import msgspec

from cloister.controller.requests import Request
from cloister.controller.routes.partitioned import PartitionedRoute
from cloister.errors import ProtocolError
from cloister.levels import LEVELS
from cloister.messages.controller_service import GenerateVariants
from cloister.messages.controller_vault import Answered, Prefilled
from cloister.messages.generation import Tokens
from cloister.messages.obfuscation import ObfuscationParams
from cloister.messages.types import Partition, SamplingParams


class ObfuscatedRoute(PartitionedRoute):
    level = LEVELS["obfuscated"]

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        super().from_service(request, message)
        if isinstance(message, Tokens) and message.finish is not None:
            self._remember(request)

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        super().from_vault(request, message)
        if isinstance(message, Prefilled) and message.sequences[-1].finish is not None:
            self._remember(request)

    def order(
        self, request: Request, public: tuple[int, ...], params: SamplingParams, partitions: tuple[Partition, ...]
    ) -> msgspec.Struct:
        return GenerateVariants(request.request_id, request.tenant, public, params, partitions, request.salt)

    def _remember(self, request: Request) -> None:
        """A conversation may go on where its session is kept; whose answers these are, its vault knows."""
        if request.session is not None and request.session.keep:
            made = tuple(tuple(request.made[number]) for number in range(request.sequences))
            request.session.vault.send(Answered(request.request_id, made))

    def check_sequences(self, request: Request, sequences: int) -> None:
        asked = request.obfuscation or ObfuscationParams()
        if not 1 + (asked.minimum or asked.fakes) <= sequences <= 1 + asked.fakes:
            raise ProtocolError("A vault has more or fewer sequences than were asked for.")
