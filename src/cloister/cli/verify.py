"""`cloister verify`: what a node proves, check by check. The exit code is the verdict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from cloister.cli.options import NodePolicy, checks_table, node_url, settings_command
from cloister.config import option
from cloister.errors import ServiceUnavailable

if TYPE_CHECKING:
    from cloister.client.verification import Verification

FAILED, UNREACHABLE, INCOMPLETE = 1, 2, 3


class VerifyOptions(NodePolicy):
    url: str = node_url()
    as_json: bool = option(False, "Print the whole document as JSON.", name="json")


@settings_command(VerifyOptions)
def verify(options: VerifyOptions) -> None:
    """Verify a node: its hardware, its release, and the key that prompts are sealed to.

    Exit code: 0 verified, 1 a check failed, 3 something could not be checked, 2 no answer or wrong use.

    Examples:
      cloister verify https://node.example --policy policy.toml
      cloister verify http://127.0.0.1:8000 --allow-software-tee
      cloister verify https://node.example --policy policy.toml --json
    """
    from cloister.client.verification import examine

    try:
        verification = examine(options.url, options.load())
    except ServiceUnavailable as gone:
        typer.secho(f"Error: {gone}", fg="red", err=True)
        raise typer.Exit(UNREACHABLE) from None
    if options.as_json:
        typer.echo(json.dumps(verification.as_json(), indent=2))
    else:
        _print(verification)
    if not verification.passed:
        raise typer.Exit(INCOMPLETE if verification.verdict.incomplete else FAILED)


def _print(verification: Verification) -> None:
    from rich.console import Console
    from rich.text import Text

    from cloister.client.verification import next_step

    console = Console()
    console.print(checks_table(verification.verdict))
    console.print()
    if verification.passed:
        key = f"prompts are sealed to channel key {verification.key_id}"
        console.print(Text(f"Verified: {verification.url}; {key}.", style="green"), soft_wrap=True)
        if not verification.verdict.claims.get("levels"):
            waits = "It serves nothing yet: it waits for the key of its weights (`cloister weights release`)."
            console.print(Text(waits, style="yellow"), soft_wrap=True)
    elif verification.verdict.incomplete:
        console.print(Text("Not verified: something that matters could not be checked.", style="yellow"))
    else:
        console.print(Text("Not verified: do not send it anything you would not publish.", style="red"))
    if step := next_step(verification.verdict):
        console.print(Text(step), soft_wrap=True)
