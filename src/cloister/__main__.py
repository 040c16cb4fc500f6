"""`cloister`, and `python -m cloister`. Ctrl-C ends it without a traceback, also while commands are being imported."""

import os
import signal

INTERRUPTED = 130  # what shells expect of a program that Ctrl-C ended


def main() -> None:
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if interruptible:
        signal.signal(signal.SIGINT, _stop)
    from cloister.cli import app

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="cloister")


def _stop(*_: object) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
