"""Where this user's memory of logs lies. What is in it, and why it must not be lost, `transparency.seen` knows."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.transparency.seen import SeenLogs


def seen_logs() -> SeenLogs:
    """The memory in $CLOISTER_STATE, or in the user's state folder."""
    return SeenLogs(state_folder() / "logs.json")


def state_folder() -> Path:
    """What a client must remember from one start to the next; unlike a cache, not to be thrown away."""
    chosen = os.environ.get("CLOISTER_STATE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "cloister"
