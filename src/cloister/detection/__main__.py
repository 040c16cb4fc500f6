"""Entry of the detector: `python -m cloister.detection FD`, started by the controller."""

import os
import socket

from cloister.process.fork_loop import ONE_THREAD
from cloister.process.hardening import begin_child

ROLE = "detector"
CODE = ("cloister.detection.process",)


def load() -> None:
    """Read weights and rules once, before the first fork. The detector compiles the rules, which takes seconds."""
    from cloister.detection.rules import shipped_rules
    from cloister.detection.tagger import shipped_tagger

    shipped_rules()
    shipped_tagger()


def main(control: socket.socket) -> None:
    os.environ.update(ONE_THREAD)  # numpy must not start threads: a process with threads cannot leave the host
    from cloister.detection.process import serve

    serve(control)


if __name__ == "__main__":
    main(begin_child(ROLE))
