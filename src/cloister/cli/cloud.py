"""`cloister cloud`: the list of a cloud's nodes and token keys, the same for all its users, in the log."""

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import AsJson, print_result
from cloister.errors import InvalidRequest
from cloister.transparency.manifest import CloudListed, NodeNamed

cloud = typer.Typer(no_args_is_help=True, help="The list of a cloud: its nodes, and the keys whose tokens count there.")

NodeAt = Annotated[list[str], typer.Option("--node", metavar="NAME=URL", help="A node; once for each.")]
From = Annotated[str, typer.Option("--issuer", metavar="URL", help="The issuer, or a file of its list of keys.")]
LogFolder = Annotated[Path, typer.Argument(metavar="LOG", help="The log's folder.")]
LogKey = Annotated[Path, typer.Option("--key", metavar="FILE", help="The log's signing key.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to write the list.")]


@cloud.command("make")
def make(node: NodeAt, issuer: From, out: Out, as_json: AsJson = False) -> None:
    """Write the list of nodes and token keys. Nodes and users need the same one; publish it in a log.

    Example:
      cloister cloud make --issuer http://127.0.0.1:8010 --node one=https://one.example --out cloud.json
    """
    from cloister.access.cloud import Cloud, CloudNode
    from cloister.client.tokens import read_directory
    from cloister.files import needed, write_whole

    pairs = [each.partition("=") for each in node]
    if any(not name or not url for name, _, url in pairs):
        raise InvalidRequest("--node takes a name and an address.", hint="Like: --node one=https://one.example")
    made = Cloud(tuple(CloudNode(name, url) for name, _, url in pairs), read_directory(issuer))
    data = Cloud.decode(made.encode()).encode()
    with needed(f"The list cannot be written to {out}"):
        write_whole(out, data)
    found = {"digest": made.digest.hex(), "nodes": len(made.nodes)}
    print_result(as_json, found, made.digest.hex(), f"{len(made.nodes)} nodes in {out}. The list's SHA-256:")


@cloud.command("announce")
def announce(
    folder: LogFolder,
    url: Annotated[str, typer.Argument(metavar="URL", help="The node, by the address that users know.")],
    key: LogKey,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="What it must prove.")] = None,
    allow_software_tee: Annotated[bool, typer.Option(help="Accept a development node.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put into the log which process a node is, each time it starts: its keys are then known to be one for all users.

    Example:
      cloister cloud announce releases https://one.example --key releases.key --policy policy.toml
    """
    from cloister.attest.policy import load_policy
    from cloister.client.verification import INSTANCE, NodeNotVerified, examine

    found = examine(url, load_policy(policy, allow_software_tee=allow_software_tee))
    if any(check.name != INSTANCE for check in found.verdict.broken):
        raise NodeNotVerified(found)
    _append(folder, NodeNamed(found.url, bytes.fromhex(found.verdict.claims["instance"])), key, as_json)


def _append(folder: Path, entry: CloudListed | NodeNamed, key: Path, as_json: bool) -> None:
    from cloister.transparency.log import Log
    from cloister.transparency.note import read_key_file

    log = Log.open(folder)
    index = log.append(entry.encoded(), read_key_file(key))
    named = (entry.digest if isinstance(entry, CloudListed) else entry.instance).hex()
    found = {"index": index, "size": log.checkpoint.size, "digest": named}
    print_result(as_json, found, f"{named} is entry {index} of {log.checkpoint.size}.")


@cloud.command("publish")
def publish(
    folder: LogFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `cloister cloud make` wrote.")],
    key: LogKey,
    as_json: AsJson = False,
) -> None:
    """Put the list into the log: clients accept nodes that follow the newest one there.

    Example:
      cloister cloud publish releases cloud.json --key releases.key
    """
    from cloister.access.cloud import load_cloud

    _append(folder, CloudListed(load_cloud(file).digest), key, as_json)
