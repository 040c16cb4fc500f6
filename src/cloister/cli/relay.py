"""`cloister relay`: stands between users and nodes, so that a node learns no address, and the relay no content."""

import asyncio

import typer
from pydantic import BaseModel

from cloister.addresses import HttpAddress
from cloister.cli.options import settings_command
from cloister.config import GatewaySettings, option
from cloister.messages.log_line import LogFormat


class RelayOptions(BaseModel):
    to: list[str] = option(..., "A node to pass requests on to; may be repeated.", metavar="NODE_URL")
    host: str = option("127.0.0.1", "Address to listen on; for https, behind a proxy that ends TLS.")
    port: int = option(8002, "Port to listen on; 0: any free port.", ge=0, le=65535)
    log_format: LogFormat = option("text", "Log lines for people, or one JSON object each.")
    connections: int = option(64, "Connections of one address at once, unless it is this machine's.", ge=1)


@settings_command(RelayOptions)
def relay(options: RelayOptions) -> None:
    """Pass encapsulated requests (Oblivious HTTP) on to nodes. It reads none, keeps no key, and logs no address.

    It hides users from a node only if others than the node's operator run it, and if several users use it.

    Examples:
      cloister relay --to https://node.example
      cloister relay --to https://a.example --to https://b.example --host 0.0.0.0 --port 443
      cloister proxy https://node.example --relay https://relay.example --policy policy.toml
    """
    import uvloop

    from cloister.process.log_lines import begin_logging
    from cloister.relay import run_relay

    begin_logging("relay", options.log_format)

    nodes = [HttpAddress.parse(each) for each in options.to]
    settings = GatewaySettings(host=options.host, port=options.port, max_connections_of_one=options.connections)

    def ready(local: str) -> None:
        typer.echo(f"Relay     {local}")
        for node in nodes:
            typer.echo(f"          {node.resource} → {node}")
        typer.echo("Ctrl-C ends it.")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_relay(nodes, settings, ready))
