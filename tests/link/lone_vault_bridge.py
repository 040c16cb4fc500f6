"""A vault bridge without a doorkeeper: `python -m tests.link.lone_vault_bridge FD`, told a connection instead."""

from __future__ import annotations

import socket

from cloister.link.network.confine import run_bridge
from cloister.link.network.handshake import shape_of
from cloister.link.network.records import longest_record
from cloister.link.network.tls import establish
from cloister.link.network.vault_bridge import carry
from cloister.messages.network_link import Accept
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child


def _serve(host: socket.socket) -> None:
    line: BlockingEndpoint[Accept] = BlockingEndpoint(host, Accept)
    if (order := line.next()) is not None:
        connection = socket.socket(fileno=line.take_descriptors(1)[0])
        carry(host, establish(connection, order.credentials, longest_record(shape_of(order.request))), order)


if __name__ == "__main__":
    run_bridge(begin_child("bridge-far"), _serve)
