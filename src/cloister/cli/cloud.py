"""`cloister cloud`: the list of a cloud's nodes and token keys, the same for all its users, in the log."""

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import AsJson, print_result
from cloister.errors import InvalidRequest

cloud = typer.Typer(no_args_is_help=True, help="The list of a cloud: its nodes, and the keys whose tokens count there.")

NodeAt = Annotated[list[str], typer.Option("--node", metavar="NAME=URL", help="A node; once for each.")]
From = Annotated[str, typer.Option("--issuer", metavar="URL", help="The issuer, or a file of its list of keys.")]
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


@cloud.command("publish")
def publish(
    folder: Annotated[Path, typer.Argument(metavar="LOG", help="The log's folder.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `cloister cloud make` wrote.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The log's signing key.")],
    as_json: AsJson = False,
) -> None:
    """Put the list into the log: clients accept nodes that follow the newest one there.

    Example:
      cloister cloud publish releases cloud.json --key releases.key
    """
    from cloister.access.cloud import load_cloud
    from cloister.transparency.log import Log
    from cloister.transparency.manifest import CloudListed
    from cloister.transparency.note import read_key_file

    listed = load_cloud(file)
    opened = Log.open(folder)
    index = opened.append(CloudListed(listed.digest).encoded(), read_key_file(key))
    found = {"index": index, "size": opened.checkpoint.size, "digest": listed.digest.hex()}
    print_result(as_json, found, f"{listed.digest.hex()} is entry {index} of {opened.checkpoint.size}.")
