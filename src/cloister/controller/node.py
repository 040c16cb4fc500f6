"""What all routes share."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from cloister.controller.requests import Requests
from cloister.controller.service import Service
from cloister.controller.sessions import Sessions
from cloister.controller.verification import Verification
from cloister.errors import ServiceUnavailable
from cloister.messages.controller_frontend import Serving


@dataclass
class Node:
    requests: Requests
    sessions: Sessions
    serving: Callable[[], Serving]
    verification: Verification
    service: Service | None = None

    def working_service(self) -> Service:
        if self.service is None:
            raise ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
        return self.service

    def send(self, message: msgspec.Struct) -> None:
        """To the service, if there is one."""
        if self.service is not None:
            self.service.send(message)
