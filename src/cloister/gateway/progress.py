"""How far a slow answer is, as a comment among server-sent events: readers of events skip it, people can read it, and
the page shows it. Counts and a pace; nothing of what is computed."""

from __future__ import annotations

from cloister.messages.generation import Progress


def comment(progress: Progress) -> bytes:
    """A line that begins with a colon (HTML standard, section 9.2.6: comments are ignored)."""
    pace = progress.seconds_per_token
    estimate = "" if pace is None else f", about {pace:.2g} s per token"
    return f": token {progress.token}, layer {progress.layer} of {progress.layers}{estimate}\n\n".encode()
