"""Between the controller and another engine's process: this message, then the service's wire (controller_service)."""

from cloister.messages.controller_packer import Start


class StartEngine(Start, frozen=True):
    """Controller → engine, first: the model's folder and the engine's settings."""

    allow_degraded: bool = False
