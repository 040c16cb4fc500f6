"""`cloister verify`: what a node proves, check by check. The exit code is the verdict."""

import json

import typer

from cloister.cli.options import NodePolicy, checks_table, node_url, settings_command
from cloister.config import option
from cloister.errors import ServiceUnavailable

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
    from rich.console import Console
    from rich.text import Text

    from cloister.client.verification import examine, next_step

    try:
        verification = examine(options.url, options.load())
    except ServiceUnavailable as gone:
        typer.secho(f"Error: {gone}", fg="red", err=True)
        raise typer.Exit(UNREACHABLE) from None
    verdict = verification.verdict
    exit_code = 0 if verdict.passed else INCOMPLETE if verdict.incomplete else FAILED
    if options.as_json:
        typer.echo(json.dumps(verification.as_json(), indent=2))
        raise typer.Exit(exit_code)
    console = Console()
    console.print(checks_table(verdict))
    console.print()
    if verdict.passed:
        key = f"prompts are sealed to channel key {verification.key_id}"
        console.print(Text(f"Verified: {verification.url}; {key}.", style="green"), soft_wrap=True)
        if not verdict.claims.get("levels"):
            waits = "It serves nothing yet: it waits for the key of its weights (`cloister weights release`)."
            console.print(Text(waits, style="yellow"), soft_wrap=True)
    elif verdict.incomplete:
        console.print(Text("Not verified: something that matters could not be checked.", style="yellow"))
    else:
        console.print(Text("Not verified: do not send it anything you would not publish.", style="red"))
    if step := next_step(verdict):
        console.print(Text(step), soft_wrap=True)
    raise typer.Exit(exit_code)
