"""`cloister release`: what a release is made of, and whether this is it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.verdict import report

if TYPE_CHECKING:
    from cloister.transparency.checkpoint import Checkpoint
    from cloister.transparency.trust import ReleaseTrust

release = typer.Typer(no_args_is_help=True, help="Release manifests: which bytes a release is made of.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Source = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A source tree of Cloister.", show_default="what runs here")
]
LogKey = Annotated[list[str] | None, typer.Option("--log-key", metavar="VKEY", help="A log to trust; may be repeated.")]
WitnessKey = Annotated[
    list[str] | None, typer.Option("--witness", metavar="VKEY", help="A witness to trust; may be repeated.")
]
Quorum = Annotated[
    int | None, typer.Option(min=0, help="How many witnesses must have signed.", show_default="all of them")
]
Seen = Annotated[Path | None, typer.Option(metavar="FILE", help="A checkpoint of the log seen earlier.")]


@release.command("build")
def build(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the manifest.")],
    source: Source = None,
    image: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="The container or machine image: sha256:<64 hex digits>.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the manifest of a source tree. The same tree gives the same bytes, on any machine.

    Examples:

      cloister release build --source . --out release.json

      cloister release build --source . --image sha256:… --out release.json --json
    """
    import json

    from cloister.files import needed, write_whole
    from cloister.transparency.manifest import build_manifest, source_of_running

    manifest = build_manifest(source if source is not None else source_of_running(), image=image)
    with needed(f"The manifest cannot be written to {out}"):
        write_whole(out, manifest.encoded())
    measured = manifest.measurement().hex()
    if as_json:
        told = {"manifest": str(out), "version": manifest.version, "measurement": measured}
        typer.echo(json.dumps({**told, "files": len(manifest.files), "lock": manifest.lock, "image": manifest.image}))
        return
    typer.secho(f"Version {manifest.version}, {len(manifest.files)} files; manifest in {out}.", dim=True, err=True)
    typer.echo(measured)


@release.command("check")
def check(
    manifest: Annotated[Path, typer.Argument(help="The release's manifest.")],
    source: Source = None,
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also check a proof of `cloister log prove`.")
    ] = None,
    log_key: LogKey = None,
    witness: WitnessKey = None,
    quorum: Quorum = None,
    seen: Seen = None,
    as_json: AsJson = False,
) -> None:
    """Check that what runs here, or a source tree, is this release; exits with 1 if not.

    Examples:

      cloister release check release.json

      cloister release check release.json --source .

      cloister release check release.json --proof proof.json --log-key example.com/releases+…
    """
    from cloister.checks import Examination
    from cloister.errors import SetupError
    from cloister.transparency.manifest import (
        MAX_MANIFEST_BYTES,
        build_manifest,
        differences,
        measure_running,
        measurement,
        read_manifest,
    )
    from cloister.transparency.proof import read_proof, verify_release

    data = read_file(manifest, MAX_MANIFEST_BYTES)
    wanted = read_manifest(data)
    here = measure_running() if source is None else build_manifest(source)
    found = Examination()
    found.claim("release_version", wanted.version)
    found.claim("release_measurement", measurement(data).hex())
    wrong = differences(wanted, here)
    more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    found.check("source", not wrong, "; ".join(wrong[:5]) + more, found=f"{len(here.files)} files are the release's")
    if proof is not None:
        if not log_key:
            raise SetupError("A proof says nothing without a log to trust.", hint="Give --log-key.")
        trusted = trust_of(log_key, witness, quorum)
        shown = read_proof(read_file(proof, 1 << 20))
        found.include(verify_release(shown, measurement(data), trusted=trusted, seen=checkpoint_in(seen)))
    report(found.verdict(), as_json=as_json)


def trust_of(log_keys: list[str] | None, witnesses: list[str] | None, quorum: int | None) -> ReleaseTrust:
    from cloister.transparency.trust import ReleaseTrust

    return ReleaseTrust(tuple(log_keys or ()), tuple(witnesses or ()), quorum)


def checkpoint_in(file: Path | None) -> Checkpoint | None:
    """The checkpoint a file holds."""
    from cloister.transparency.checkpoint import read_checkpoint

    if file is None:
        return None
    return read_checkpoint(text_of(file)).checkpoint


def text_of(file: Path) -> str:
    from cloister.errors import EvidenceInvalid

    try:
        return read_file(file, 1 << 20).decode()
    except UnicodeDecodeError:
        raise EvidenceInvalid(f"{file} is not text.") from None


def read_file(file: Path, limit: int) -> bytes:
    """A file somebody else may have written: never more of it than it may have."""
    from cloister.errors import EvidenceInvalid
    from cloister.files import read_bounded

    return read_bounded(file, limit, too_large=EvidenceInvalid)
