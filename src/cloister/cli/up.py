"""`cloister up`: nodes with relay, issuer and proxy on one machine, to try a cloud that learns no names."""

import signal
from contextlib import ExitStack
from pathlib import Path
from time import sleep

import typer
from pydantic import BaseModel

from cloister.cli.options import settings_command
from cloister.config import data_folder, option
from cloister.errors import SetupError
from cloister.local_cloud.parts import Parts

NODE = "here"
_STEP_S = 0.2


class UpOptions(BaseModel):
    nodes: int = option(1, "How many nodes; several need --issuer, whose tokens choose among them.", ge=1, le=16)
    relay: bool = option(False, "Start an oblivious relay: the node learns no address.", name="--relay")
    issuer: bool = option(False, "Start an issuer of tokens: the node learns no name.", name="--issuer")
    model: str | None = option(None, "As `cloister serve --model`.", show_default="the default model")
    port: int = option(8000, "The node's port; 0: any free one.", ge=0, le=65535)
    proxy_port: int = option(8001, "The proxy's port; 0: any free one.", ge=0, le=65535)
    relay_port: int = option(8002, "The relay's port; 0: any free one.", ge=0, le=65535)
    issuer_port: int = option(8010, "The issuer's port; 0: any free one.", ge=0, le=65535)
    folder: Path | None = option(
        None, "Where it keeps its list and keys.", metavar="DIR", show_default="the data folder"
    )
    as_json: bool = option(False, "With --nodes: print the nodes' states as JSON lines.", name="json")


@settings_command(UpOptions)
def up(options: UpOptions) -> None:
    """Start a node and, where asked, a relay and an issuer, with a proxy that uses them all. Ctrl-C ends them.

    It shows how the parts fit. In earnest different people run them: an operator of two sees what both see.

    With --nodes several nodes run, each in a network namespace where this user may make some, else on loopback ports.
    One that ends is started again; SIGHUP starts them again one by one, without a request that fails. Options of
    `cloister serve` come from the environment: CLOISTER_SERVE_THREADS=1.

    Examples:
      cloister up --relay --issuer
      cloister up --nodes 3 --relay --issuer
      OPENAI_BASE_URL=http://127.0.0.1:8001/v1 OPENAI_API_KEY=any my-program
    """
    folder = options.folder or data_folder() / "up"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends its parts then, too
    with ExitStack() as stack:
        try:
            if options.nodes > 1:
                _run_cloud(options, folder, stack)
            parts = Parts(stack)
            _start(parts, options, folder)
            while True:
                parts.check()
                sleep(_STEP_S)
        except KeyboardInterrupt:
            typer.echo("Stopping…", err=True)


def _run_cloud(options: UpOptions, folder: Path, stack: ExitStack) -> None:
    from cloister.local_cloud.cloud import Plan, run_cloud
    from cloister.local_cloud.view import View

    if not options.issuer:
        raise SetupError("Several nodes need --issuer.", hint="The tokens of requests choose among the nodes.")
    serving = ["--model", options.model] if options.model else []
    ports = options.port, options.proxy_port, options.issuer_port, options.relay_port if options.relay else None
    plan = Plan(folder.absolute(), options.nodes, *ports, serving=tuple(serving))
    run_cloud(plan, stack, View(stack, as_json=options.as_json))


def _start(parts: Parts, options: UpOptions, folder: Path) -> None:
    node, proxy, serve = f"http://127.0.0.1:{options.port}", ["--allow-software-tee"], ["--port", str(options.port)]
    serve += ["--model", options.model] if options.model else []
    if options.issuer:
        if not options.port:
            raise SetupError("With --issuer the node's port is in the list of the cloud.", hint="Name one with --port.")
        words = ["issuer", "--port", str(options.issuer_port), "--folder", str(folder / "issuer")]
        issuer = parts.start("issuer", words, r"Keys +(http://[^/]+)/")
        listed = str(folder / "cloud.json")
        parts.run(["cloud", "make", "--issuer", issuer, "--node", f"{NODE}={node}", "--out", listed])
        serve += ["--cloud", listed, "--node-name", NODE]
        proxy += ["--issuer", issuer, "--cloud", listed]
    node = parts.start("node", ["serve", *serve], r"API +(http://\S+)/v1")
    if options.relay:
        relay = parts.start("relay", ["relay", "--to", node, "--port", str(options.relay_port)], r"Relay +(http://\S+)")
        proxy += ["--relay", relay]
    url = parts.start("proxy", ["proxy", node, "--port", str(options.proxy_port), *proxy], r"API +(http://\S+)/v1")
    typer.echo(f"\nReady: any OpenAI client at {url}/v1, with any API key.")
