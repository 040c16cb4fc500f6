"""`cloister verify`: what a node proves of itself, check by check. The exit code is the verdict.

`cloister proxy`: a local OpenAI endpoint that seals what programs ask and opens what a verified node answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.addresses import HttpAddress
from cloister.cli.obfuscate import AutoRedact, Epsilon, Fakes, SamplingModel, local_obfuscation_of
from cloister.cli.options import checks_table
from cloister.errors import ServiceUnavailable, SetupError

if TYPE_CHECKING:
    from cloister.client.verification import Verification, VerifiedNode

FAILED, UNREACHABLE, INCOMPLETE = 1, 2, 3

NodeUrl = Annotated[str, typer.Argument(metavar="URL", help="The node's address; `/v1` may be left out.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="What the node must prove, in TOML.", show_default="real TEEs only"),
]
AllowSoftwareTee = Annotated[
    bool,
    typer.Option(
        "--allow-software-tee",
        help="Accept a development node, which proves nothing: whoever runs it can read everything.",
    ),
]


def verify(
    url: NodeUrl,
    policy: PolicyFile = None,
    allow_software_tee: AllowSoftwareTee = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document as JSON.")] = False,
) -> None:
    """Verify a node: its hardware, its release, and the key that prompts are sealed to.

    Exit code: 0 verified, 1 a check failed, 3 something could not be checked, 2 no answer or wrong use.

    Examples:

      cloister verify https://node.example --policy policy.toml

      cloister verify http://127.0.0.1:8000 --allow-software-tee

      cloister verify https://node.example --policy policy.toml --json
    """
    from cloister.attest.policy import load_policy
    from cloister.client.verification import examine

    rules = load_policy(policy, allow_software_tee=allow_software_tee)
    try:
        verification = examine(url, rules)
    except ServiceUnavailable as gone:
        typer.secho(f"Error: {gone}", fg="red", err=True)
        raise typer.Exit(UNREACHABLE) from None
    if as_json:
        typer.echo(json.dumps(verification.as_json(), indent=2))
    else:
        _print(verification)
    if not verification.passed:
        raise typer.Exit(INCOMPLETE if verification.verdict.incomplete else FAILED)


def verified_node(url: str, policy: Path | None, allow_software_tee: bool) -> VerifiedNode:
    """The node, if it passes the policy; says so where it has no hardware behind it."""
    from cloister.attest.policy import load_policy
    from cloister.client.verification import VerifiedNode

    node = VerifiedNode(url, load_policy(policy, allow_software_tee=allow_software_tee))
    if note := software_note(node.verification):
        typer.secho(note, fg="yellow", err=True)
    return node


def software_note(verification: Verification) -> str:
    """What to say of a node that has no hardware behind it; "" for any other."""
    if verification.verdict.claims.get("tee") != "none":
        return ""
    return "Note: this node attests by its own word (software TEE): whoever runs it can read everything."


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


def proxy(
    url: NodeUrl,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0: any free port.")] = 8001,
    policy: PolicyFile = None,
    allow_software_tee: AllowSoftwareTee = False,
    obfuscate: Annotated[
        bool,
        typer.Option("--obfuscate", help="Send prompts with <redacted>secrets</redacted> among made-up ones."),
    ] = False,
    auto_redact: AutoRedact = False,
    insecure_plaintext: Annotated[
        bool,
        typer.Option(
            "--insecure-plaintext",
            help="With --obfuscate: speak to any OpenAI-compatible server. Nothing is verified or sealed.",
        ),
    ] = False,
    fakes: Fakes = 7,
    epsilon: Epsilon = 0.1,
    sampling_model: SamplingModel = None,
) -> None:
    """Give programs in any language a verified, sealed way to a node: an OpenAI endpoint on this machine.

    The node is verified before the endpoint opens, again after a restart of the node, and when the policy's max_age_s
    has passed. What does not verify is not spoken to.

    Examples:

      cloister proxy https://node.example --policy policy.toml

      OPENAI_BASE_URL=http://127.0.0.1:8001/v1 my-program

      cloister proxy http://127.0.0.1:8000 --allow-software-tee --port 0

      cloister proxy https://api.example/v1 --obfuscate --insecure-plaintext --fakes 7
    """
    from cloister.client.proxy import Proxy, run_proxy

    if insecure_plaintext and (policy or allow_software_tee or not obfuscate):
        raise SetupError("--insecure-plaintext verifies nothing.", hint="It goes with --obfuscate, not with a policy.")
    if auto_redact and not obfuscate:
        raise SetupError("--auto-redact hides nothing by itself.", hint="It goes with --obfuscate.")
    node = None if insecure_plaintext else verified_node(url, policy, allow_software_tee)
    obfuscation = local_obfuscation_of(sampling_model, fakes, epsilon, auto_redact) if obfuscate else None

    def make() -> Proxy:
        return Proxy(url if node is None else node, obfuscation)

    def ready(local: str) -> None:
        typer.echo(f"Verified  {node.address}" if node else f"In the clear to {HttpAddress.parse(url)}")
        typer.echo(f"API       {local}/v1")
        if obfuscation is not None:
            typer.echo(f"Prompts with secrets go among {fakes} made-up ones: {fakes + 1} requests for one.")
        typer.echo("Ctrl-C ends it.")

    run_proxy(make, port, ready)
