"""`cloister up`: a node with relay, issuer and proxy on one machine, to try a cloud that learns no names."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import IO

import typer
from pydantic import BaseModel

from cloister.cli.options import settings_command
from cloister.config import DEVELOPMENT_KEY, data_folder, option
from cloister.errors import SetupError

NODE = "here"
_STOP_S = 20.0
_STEP_S = 0.2


class UpOptions(BaseModel):
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


@settings_command(UpOptions)
def up(options: UpOptions) -> None:
    """Start a node and, where asked, a relay and an issuer, with a proxy that uses them all. Ctrl-C ends them.

    It shows how the parts fit. In earnest different people run them: an operator of two sees what both see.

    Examples:
      cloister up --relay --issuer
      OPENAI_BASE_URL=http://127.0.0.1:8001/v1 OPENAI_API_KEY=any my-program
    """
    folder = options.folder or data_folder() / "up"
    with ExitStack() as stack:
        parts = Parts(stack)
        try:
            _start(parts, options, folder)
            parts.wait()
        except KeyboardInterrupt:
            typer.echo("Stopping…")


def _start(parts: "Parts", options: UpOptions, folder: Path) -> None:
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


class Parts:
    """The commands that run, the last one started ends first. What they say is shown behind their names."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._environment = {**os.environ, "CLOISTER_API_KEY": os.environ.get("CLOISTER_API_KEY") or DEVELOPMENT_KEY}

    def start(self, name: str, words: Sequence[str], ready: str) -> str:
        """What `ready` finds in the command's output, once it is there."""
        process = subprocess.Popen(
            _command(words),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running[name] = process
        self._stack.callback(_end, process)
        assert process.stdout is not None
        for line in process.stdout:
            typer.echo(f"{name:7} {line.rstrip()}")
            if found := re.search(ready, line):
                Thread(target=_show, args=(name, process.stdout), daemon=True).start()
                return found[1]
        raise SetupError(f"`cloister {words[0]}` ended before it was ready.", hint="Its last words are above.")

    def run(self, words: Sequence[str]) -> None:
        if subprocess.run(_command(words), env=self._environment, stdout=subprocess.DEVNULL, check=False).returncode:
            raise SetupError(f"`cloister {' '.join(words[:2])}` failed.", hint="Its last words are above.")

    def wait(self) -> None:
        """Until one of them ends: then the others end, too."""
        while True:
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise SetupError(f"The {name} ended.", hint="Its last words are above.")
            sleep(_STEP_S)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "cloister", *words]


def _show(name: str, output: IO[str]) -> None:
    for line in output:
        typer.echo(f"{name:7} {line.rstrip()}")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
