"""`obfuscated`: as `partitioned`, with λ+1 sequences of one request ("Confidential Prompting", §5): the real prompt and
λ that differ from it in its secrets, in an order that the vault and the user know. Nothing here depends on it."""

from __future__ import annotations

from cloister.controller.requests import Request
from cloister.controller.routes.partitioned import PartitionedRoute
from cloister.errors import ProtocolError
from cloister.levels import LEVELS
from cloister.messages.obfuscation import ObfuscationParams


class ObfuscatedRoute(PartitionedRoute):
    """Frontend → vault → service → frontend, for all sequences at once."""

    level = LEVELS["obfuscated"]

    def check_sequences(self, request: Request, sequences: int) -> None:
        asked = request.obfuscation or ObfuscationParams()
        if not 1 + (asked.minimum or asked.fakes) <= sequences <= 1 + asked.fakes:
            raise ProtocolError("A vault has more or fewer sequences than were asked for.")
