"""Entry of the gateway process: `python -m cloister.gateway FD`, started by the controller."""

import asyncio
import socket

from cloister.process.hardening import begin_child

ROLE = "gateway"
CODE = ("cloister.gateway.process",)


def main(control: socket.socket) -> None:
    from cloister.gateway.process import serve

    # asyncio's own loop: uvloop keeps what it last received in a buffer that lives as long as the loop.
    asyncio.run(serve(control))


if __name__ == "__main__":
    main(begin_child(ROLE))
