"""Entry of the detector: `python -m cloister.prefix.detection FD`, started by the controller."""

from __future__ import annotations

import socket

from cloister.process.hardening import begin_child

ROLE = "detector"
CODE = ("cloister.prefix.detection.process",)


def load() -> None:
    """Weights, tables and compiled rules: read once, before anything is forked."""
    from cloister.prefix.detection.process import shipped_pipeline

    shipped_pipeline()


def main(control: socket.socket) -> None:
    from cloister.prefix.detection.process import serve

    serve(control)


if __name__ == "__main__":
    main(begin_child(ROLE))
