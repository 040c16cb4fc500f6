"""`cloister proxy`: a local OpenAI endpoint that seals what programs ask and opens what a verified node answers."""

from __future__ import annotations

from typing import Annotated

import typer

from cloister.cli.verify import AllowSoftwareTee, NodeUrl, PolicyFile, verified_node


def proxy(
    url: NodeUrl,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0: any free port.")] = 8001,
    policy: PolicyFile = None,
    allow_software_tee: AllowSoftwareTee = False,
) -> None:
    """Give programs in any language a verified, sealed way to a node: an OpenAI endpoint on this machine.

    The node is verified before the endpoint opens, again after a restart of the node, and when the policy's max_age_s
    has passed. What does not verify is not spoken to.

    Examples:

      cloister proxy https://node.example --policy policy.toml

      OPENAI_BASE_URL=http://127.0.0.1:8001/v1 my-program

      cloister proxy http://127.0.0.1:8000 --allow-software-tee --port 0
    """
    from cloister.client.proxy import run_proxy

    node = verified_node(url, policy, allow_software_tee)

    def ready(local: str) -> None:
        typer.echo(f"Verified  {node.address}")
        typer.echo(f"API       {local}/v1")
        typer.echo("Ctrl-C ends it.")

    run_proxy(node, port, ready)
