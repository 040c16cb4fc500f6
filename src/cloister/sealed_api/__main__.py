"""Entry of the sealed API process: `python -m cloister.sealed_api FD`, started by the controller."""

import os
import socket

from cloister.process.hardening import begin_child

ROLE = "sealed-api"
CODE = ("cloister.sealed_api.process",)


def main(control: socket.socket) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process with several threads cannot leave the host's namespaces
    from cloister.sealed_api.process import serve

    serve(control)


if __name__ == "__main__":
    main(begin_child(ROLE))
