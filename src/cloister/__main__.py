"""`cloister`, and `python -m cloister`. Ctrl-C ends it quietly from the first moment: while a command is being imported
nothing has been done yet, so there is nothing to clean up and no traceback to show.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""


def main() -> None:
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us has it ignored
    if heard:
        signal.signal(signal.SIGINT, _stop)
    from cloister.cli import app

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="cloister")


def _stop(*_: object) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
