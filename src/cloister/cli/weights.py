"""`cloister models`: the models on this machine. `cloister weights`: a provider's weights, sealed at rest."""

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import (
    AsJson,
    AsJsonTable,
    NodePolicy,
    node_url,
    print_result,
    settings_command,
    software_note,
)
from cloister.config import DEFAULT_MODEL, option
from cloister.errors import SetupError
from cloister.files import needed
from cloister.sealed_weights.file import (
    WeightsBundle,
    new_content_key,
    read_content_key,
    read_provider_key,
    seal_weights,
)
from cloister.transparency.note import new_key_file, read_key_file


def models(
    verify: Annotated[bool, typer.Option("--verify", help="Compare every byte with what was recorded.")] = False,
    as_json: AsJsonTable = False,
) -> None:
    """List the models converted on this machine."""
    from rich.console import Console
    from rich.table import Table

    from cloister.models.source import known_models

    found = known_models(verify=verify)
    if as_json:
        typer.echo(json.dumps({"models": [model.as_dict() for model in found]}, indent=2))
    else:
        table = Table("Model", "Size", "Type", "State", "Path", box=None, pad_edge=False)
        for model in found:
            size = f"{model.bytes / 1e6:.0f} MB" if model.bytes else "–"
            name = f"{model.name} (default)" if model.default else model.name
            table.add_row(name, size, model.dtype or "–", model.state, str(model.path) if model.path else "–")
        # A path must stay whole to be copied, also where the terminal is narrow or there is none.
        console = Console()
        wide = console.measure(table, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, wide)
        console.print(table)
    if any(model.state == "corrupt" for model in found):
        typer.echo("Remove the folder of a corrupt model: it is converted again at the next start.", err=True)
        raise typer.Exit(1)


weights = typer.Typer(no_args_is_help=True, help="A provider's weights, encrypted and signed at rest.")

ContentKey = Annotated[Path, typer.Option("--key", metavar="FILE", help="The content key; keep it secret.")]
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt")


@weights.command("key")
def new_keys(
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="New file for the content key.")],
    sign_key: Annotated[Path, typer.Option("--sign-key", metavar="FILE", help="New file for the signing key.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Like example.com/weights.")] = "provider/weights",
    as_json: AsJson = False,
) -> None:
    """Make the two keys of a provider, and print the verifier key for nodes, which checks the signature of the weights.

    The content key encrypts; nodes get it by `cloister weights release`. Keep the signing key to yourself.

    Example:
      cloister weights key --key content.key --sign-key sign.key --name example.com/weights
    """
    for path in (key, sign_key):
        if path.exists():
            raise SetupError(f"{path} exists already, and a key is not overwritten.", hint="Name new files.")
    verifier = str(new_key_file(sign_key, name).verifier)
    new_content_key(key)
    found = {"provider_key": verifier, "key": str(key), "sign_key": str(sign_key)}
    print_result(as_json, found, verifier, "For `cloister serve --provider-key`:")


@weights.command("seal")
def seal(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The sealed file to write.")],
    key: ContentKey,
    sign_key: Annotated[Path, typer.Option("--sign-key", metavar="FILE", help="The provider's signing key.")],
    model: Annotated[str | None, typer.Option(help="Folder, GGUF file, or hub id.", show_default=DEFAULT_MODEL)] = None,
    as_json: AsJson = False,
) -> None:
    """Seal a model: encrypt and sign it. Without the content key it is useless.

    Example:
      cloister weights seal --model ./my-model --out my-model.sealed --key content.key --sign-key sign.key
    """
    from cloister.models.convert import FILE_NAME
    from cloister.models.source import find_model

    content_key, signer = read_content_key(key), read_key_file(sign_key)
    folder = find_model(model)
    found = {path for pattern in _PATTERNS for path in folder.path.glob(pattern) if path.is_file()}
    files = sorted(path for path in found if path.name != FILE_NAME)
    with needed(f"{out} cannot be written", "Name a file in a folder that you may write to."):
        header = seal_weights(files, folder.name, out, content_key, signer)
    shown = {"file": str(out), **header.described(), "provider_key": str(signer.verifier)}
    size = f"{header.total_bytes / 1e6:.0f} MB, {len(files)} files"
    command = f"cloister serve --sealed-weights {out} --provider-key '{signer.verifier}'"
    print_result(as_json, shown, f"{header.model} is sealed in {out} ({size}).\n{command}")


@weights.command("unseal")
def unseal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sealed file.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the model, in the clear.")],
    key: ContentKey,
    provider_key: Annotated[str, typer.Option(metavar="KEY", help="What `weights key` printed.")],
    as_json: AsJson = False,
) -> None:
    """Check a sealed file and decrypt it into a folder. For its owner: a node never does this.

    Example:
      cloister weights unseal my-model.sealed --out ./copy --key content.key --provider-key 'example.com/weights+…'
    """
    with closing(WeightsBundle.open(file, read_provider_key(provider_key))) as bundle:
        content_key = read_content_key(key)
        with needed(f"{out} cannot be made", "Name a new folder."):
            out.mkdir(mode=0o700)
        try:
            with needed(f"{out} cannot be written", "Name a new folder."):
                new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                bundle.unpack(content_key, lambda each: os.open(out / each.name, new, 0o600))
        except BaseException:
            shutil.rmtree(out)
            raise
    shown = {"folder": str(out), **bundle.header.described()}
    print_result(as_json, shown, f"{bundle.header.model} is in {out}, as its provider signed it.")


class ReleaseOptions(NodePolicy):
    url: str = node_url()
    key: Path = option(..., "The content key; keep it secret.")
    as_json: bool = option(False, "Print JSON instead of text.", name="json")


@weights.command("release")
@settings_command(ReleaseOptions)
def release(options: ReleaseOptions) -> None:
    """Verify a node that waits for its weights' key and, only if it passes, give it the key.

    Examples:
      cloister weights release https://node.example --key content.key --policy policy.toml
      cloister weights release http://127.0.0.1:8000 --key content.key --allow-software-tee
    """
    from cloister.client.key_release import release_key

    verification = release_key(options.url, read_content_key(options.key), options.load())
    model = verification.verdict.claims.get("model", "its model")
    then = f"It checks the weights next, and serves {model!r} if they are what their provider signed."
    line = f"{verification.url} is verified and has the key.\n{then}"
    print_result(options.as_json, {"released": True, **verification.as_json()}, line)
    if not options.as_json and (note := software_note(verification)):
        typer.secho(note, fg="yellow", err=True)
