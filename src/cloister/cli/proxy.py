"""`cloister proxy`: a local OpenAI endpoint that seals requests of programs and opens a verified node's answers."""

import typer

from cloister.addresses import HttpAddress
from cloister.cli.anonymity import AnonymityOptions
from cloister.cli.obfuscate import SamplingOptions
from cloister.cli.options import node_url, settings_command
from cloister.config import option
from cloister.errors import SetupError


class ProxyOptions(AnonymityOptions):
    url: str = node_url()
    port: int = option(8001, "Where to listen on 127.0.0.1; 0: any free port.", ge=0, le=65535)
    obfuscate: bool = option(False, "Send prompts with <redacted>secrets</redacted> among made-up ones.")
    insecure_plaintext: bool = option(False, "With --obfuscate: any OpenAI-compatible server, unverified, unsealed.")
    sampling: SamplingOptions = SamplingOptions()


@settings_command(ProxyOptions)
def proxy(options: ProxyOptions) -> None:
    """Give programs in any language a verified, sealed way to a node: an OpenAI endpoint on this machine.

    The node is verified before the endpoint opens, again after a restart of the node, and when the policy's max_age_s
    has passed. Nothing is sent to a node that does not verify.

    Examples:
      cloister proxy https://node.example --policy policy.toml
      OPENAI_BASE_URL=http://127.0.0.1:8001/v1 my-program
      cloister proxy http://127.0.0.1:8000 --allow-software-tee --port 0
      cloister proxy https://node.example --relay https://relay.example
      cloister proxy https://api.example/v1 --obfuscate --insecure-plaintext --fakes 7
    """
    from cloister.client.proxy import Proxy, run_proxy

    sampling = options.sampling
    verifying = options.policy or options.allow_software_tee or options.relay or options.issuer
    if options.insecure_plaintext and (verifying or not options.obfuscate):
        hint = "It goes with --obfuscate, not with a policy, a relay or an issuer."
        raise SetupError("--insecure-plaintext verifies nothing.", hint=hint)
    if sampling.auto_redact and not options.obfuscate:
        raise SetupError("--auto-redact hides nothing by itself.", hint="It goes with --obfuscate.")
    access = options.access(options.url) if options.issuer else None
    node = None if options.insecure_plaintext or access else options.verified(options.url, options.relay)
    obfuscation = sampling.obfuscation() if options.obfuscate else None

    def make() -> Proxy:
        return Proxy(access or node or options.url, obfuscation)

    def ready(local: str) -> None:
        if access:
            typer.echo(f"Tokens    {access.source.left()} left; each pays for one request, at the node that it names")
            typer.echo("          A node is verified before it gets the first request.")
        else:
            typer.echo(f"Verified  {node.address}" if node else f"In the clear to {HttpAddress.parse(options.url)}")
        for line in options.anonymity():
            typer.echo(line)
        typer.echo(f"API       {local}/v1")
        if obfuscation is not None:
            fakes = sampling.fakes
            typer.echo(f"Prompts with secrets go among {fakes} made-up ones: {fakes + 1} requests for one.")
        typer.echo("Ctrl-C ends it.")

    run_proxy(make, options.port, ready)
