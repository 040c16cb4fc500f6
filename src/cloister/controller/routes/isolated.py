"""`isolated`: the session's vault reads the prompt and decodes alone. The service gets no message about the request."""

import msgspec

from cloister.controller.requests import Request
from cloister.controller.routes.vault import VaultRoute
from cloister.levels import LEVELS
from cloister.messages.generation import Tokens


class IsolatedRoute(VaultRoute):
    level = LEVELS["isolated"]

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        if isinstance(message, Tokens):
            self.advance(request, message)
        else:
            super().from_vault(request, message)
