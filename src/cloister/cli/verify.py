"""`cloister verify`: what a node proves, check by check. The exit code is the verdict."""

import json

import typer

from cloister.cli.options import NodePolicy, exit_by, node_url, settings_command, show_verdict
from cloister.config import option
from cloister.errors import ServiceUnavailable

UNREACHABLE = 2


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
    from cloister.client.verification import examine, next_step

    try:
        verification = examine(options.url, options.load())
    except ServiceUnavailable as gone:
        typer.secho(f"Error: {gone}", fg="red", err=True)
        raise typer.Exit(UNREACHABLE) from None
    verdict = verification.verdict
    if options.as_json:
        typer.echo(json.dumps(verification.as_json(), indent=2))
        exit_by(verdict)
    passed = f"Verified: {verification.url}; prompts are sealed to channel key {verification.key_id}."
    incomplete = "Not verified: something that matters could not be checked."
    show_verdict(verdict, passed, incomplete, "Not verified: do not send it anything you would not publish.")
    if verdict.passed and not verdict.claims.get("levels"):
        waits = "It serves nothing yet: it waits for the key of its weights (`cloister weights release`)."
        typer.secho(waits, fg="yellow")
    if step := next_step(verdict):
        typer.echo(step)
    exit_by(verdict)
