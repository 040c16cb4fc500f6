"""`cloister release`: what a release is made of, and whether this is it. `cloister log`: a public log of releases in a
plain folder, its witnesses and its auditors.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, report
from cloister.errors import EvidenceInvalid, InvalidRequest, SetupError
from cloister.files import needed, read_bounded, write_whole

if TYPE_CHECKING:
    from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust

release = typer.Typer(no_args_is_help=True, help="Release manifests: which bytes a release is made of.")

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
    packages: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What it runs with, from `cloister release lock`. Nodes show no release without it."
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="The container or machine image: sha256:<64 hex digits>.")
    ] = None,
    with_mpc: Annotated[
        bool, typer.Option("--with-mpc", help="Name the code of the level mpc, too: for nodes that offer it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the manifest of a source tree. The same tree gives the same bytes, on any machine.

    Examples:

      cloister release build --source . --packages packages.lock --out release.json

      cloister release build --source . --image sha256:… --out release.json --json
    """
    from cloister.transparency.manifest import build_manifest, source_of_running
    from cloister.transparency.packages import MAX_LOCK_BYTES, read_packages

    lock = None if packages is None else read_packages(read_file(packages, MAX_LOCK_BYTES))
    tree = source if source is not None else source_of_running()
    manifest = build_manifest(tree, also=("cloister_mpc",) if with_mpc else (), image=image, packages=lock)
    with needed(f"The manifest cannot be written to {out}"):
        write_whole(out, manifest.encoded())
    measured = manifest.measurement().hex()
    if as_json:
        told = {"manifest": str(out), "version": manifest.version, "measurement": measured}
        typer.echo(json.dumps({**told, "files": len(manifest.files), "lock": manifest.lock, "image": manifest.image}))
        return
    typer.secho(f"Version {manifest.version}, {len(manifest.files)} files; manifest in {out}.", dim=True, err=True)
    typer.echo(measured)


@release.command("lock")
def lock(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the lock file.")],
    kernels: Annotated[
        bool, typer.Option("--kernels/--no-kernels", help="Build the kernels' library here and name it, too.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write what a release runs with: the packages installed here, Python, and the kernels built here, by their hashes.

    Every file of every package is compared with its RECORD first. Run it where a node's environment was just installed.

    Examples:

      cloister release lock --out packages.lock

      cloister release lock --no-kernels --out packages.lock --json
    """
    from cloister.process.release_code import changed_files, installed
    from cloister.transparency.packages import Packages

    if wrong := changed_files():
        raise SetupError(
            f"{len(wrong)} installed files are not as their packages say; the first is {wrong[0]}.",
            hint="Install these packages again.",
        )
    found = Packages(installed(), _kernels() if kernels else {})
    with needed(f"The lock file cannot be written to {out}"):
        write_whole(out, found.encoded())
    if as_json:
        typer.echo(json.dumps({"lock": str(out), "packages": found.packages, "kernels": found.kernels}))
        return
    typer.echo(f"{len(found.packages)} packages and {len(found.kernels)} libraries of kernels; lock file in {out}.")


def _kernels() -> dict[str, str]:
    from cloister.compute.choose import built_libraries
    from cloister.files import sha256_of

    return {sha256_of(library): how for library, how in built_libraries().items()}


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
    from msgspec.structs import replace

    from cloister.checks import Examination
    from cloister.process.release_code import installed
    from cloister.transparency.manifest import (
        MAX_MANIFEST_BYTES,
        build_manifest,
        differences,
        measure_running,
        measurement,
        packages_beside,
        read_manifest,
    )
    from cloister.transparency.proof import read_proof, verify_release

    data = read_file(manifest, MAX_MANIFEST_BYTES)
    wanted = read_manifest(data)
    also = packages_beside(wanted)
    here = measure_running(also) if source is None else build_manifest(source, also=also)
    if wanted.packages is not None and source is None:
        here = replace(here, packages=installed())
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
        at, earlier = datetime.now(UTC), checkpoint_in(seen)
        found.include(verify_release(shown, measurement(data), at=at, trusted=trusted, seen=earlier))
    report(found.verdict(), as_json=as_json)


def trust_of(log_keys: list[str] | None, witnesses: list[str] | None, quorum: int | None) -> ReleaseTrust:
    from cloister.transparency.checkpoint import ReleaseTrust

    return ReleaseTrust(tuple(log_keys or ()), tuple(witnesses or ()), quorum)


def checkpoint_in(file: Path | None) -> Checkpoint | None:
    from cloister.transparency.checkpoint import read_checkpoint

    return None if file is None else read_checkpoint(text_of(file)).checkpoint


def text_of(file: Path) -> str:
    try:
        return read_file(file, 1 << 20).decode()
    except UnicodeDecodeError:
        raise EvidenceInvalid(f"{file} is not text.") from None


def read_file(file: Path, limit: int) -> bytes:
    """A file that somebody else may have written: never reads more than the limit."""
    return read_bounded(file, limit, too_large=EvidenceInvalid)


log = typer.Typer(no_args_is_help=True, help="The transparency log: every release, for everyone to see.")

Folder = Annotated[Path, typer.Argument(metavar="LOG", help="The log's folder.")]
Key = Annotated[Path, typer.Option(metavar="FILE", help="The log's signing key. Keep it out of the log's folder.")]


@log.command("create")
def create(
    folder: Folder,
    origin: Annotated[str, typer.Option(metavar="NAME", help="The log's name: an address without a scheme is usual.")],
    key: Key,
    as_json: AsJson = False,
) -> None:
    """Make an empty log and its key; prints the verifier key that clients must be given.

    Example:

      cloister log create releases --origin example.com/releases --key releases.key
    """
    from cloister.transparency.log import Log
    from cloister.transparency.note import Algorithm, new_key_file, read_key_file

    if key.resolve().is_relative_to(folder.resolve()):
        raise SetupError("The log's folder is public; its signing key must not lie in it.", hint="Name another file.")
    signing = read_key_file(key, Algorithm.ED25519) if key.exists() else new_key_file(key, origin)
    if signing.name != origin:
        raise SetupError(f"{key} is the key of {signing.name}, not of {origin}.", hint="Name a new file.")
    made = Log.create(folder, signing)
    if as_json:
        typer.echo(json.dumps({"origin": made.origin, "verifier_key": str(made.key), "size": 0}))
        return
    typer.secho(f"Log in {folder}, signing key in {key}. Clients trust it by this verifier key:", dim=True, err=True)
    typer.echo(str(made.key))


@log.command("append")
def append(
    folder: Folder,
    manifest: Annotated[Path, typer.Argument(help="What `cloister release build` wrote.")],
    key: Key,
    expires: Annotated[
        str | None, typer.Option(metavar="DAY", help="The last day clients accept it: 2027-01-31.", show_default="none")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a release into the log. One that is there stays where it is, unless it gets another last day.

    Examples:

      cloister log append releases release.json --key releases.key

      cloister log append releases release.json --key releases.key --expires 2027-01-31
    """
    from cloister.transparency.log import Log
    from cloister.transparency.manifest import MAX_MANIFEST_BYTES, measurement
    from cloister.transparency.note import Algorithm, read_key_file
    from cloister.transparency.proof import publish

    opened = Log.open(folder)
    data = read_file(manifest, MAX_MANIFEST_BYTES)
    index, new = publish(opened, data, read_key_file(key, Algorithm.ED25519), expires=_day(expires))
    size, measured = opened.checkpoint.size, measurement(data).hex()
    if as_json:
        typer.echo(json.dumps({"index": index, "new": new, "size": size, "measurement": measured}))
        return
    typer.echo(f"{measured} is entry {index} of {size}{'' if new else ', as before'}.")


@log.command("revoke")
def revoke_command(
    folder: Folder,
    measurement: Annotated[str, typer.Argument(help="The release's measurement, in hex.")],
    key: Key,
    as_json: AsJson = False,
) -> None:
    """Take a release back: clients refuse it from the next checkpoint on, and it cannot be published again.

    Example:

      cloister log revoke releases 5f3c… --key releases.key
    """
    from cloister.transparency.log import Log
    from cloister.transparency.note import Algorithm, read_key_file
    from cloister.transparency.proof import revoke

    try:
        measured = bytes.fromhex(measurement)
    except ValueError:
        measured = b""
    if len(measured) != 32:
        raise InvalidRequest("A measurement has 64 hexadecimal digits.", hint="`cloister log audit` lists them.")
    opened = Log.open(folder)
    index, new = revoke(opened, measured, read_key_file(key, Algorithm.ED25519))
    if as_json:
        typer.echo(json.dumps({"index": index, "new": new, "size": opened.checkpoint.size}))
        return
    typer.echo(
        f"{measured.hex()} is revoked by entry {index} of {opened.checkpoint.size}{'' if new else ', as before'}."
    )


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest("--expires takes a day.", hint="Like: 2027-01-31") from None


@log.command("prove")
def prove(
    folder: Folder,
    manifest: Annotated[Path, typer.Argument(help="The release's manifest.")],
    since: Annotated[int, typer.Option(min=0, help="How many entries the log had when the verifier saw it last.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the proof.", show_default="standard output")
    ] = None,
) -> None:
    """Prove, as JSON, that a release is in the log and that the log only grew.

    Examples:

      cloister log prove releases release.json --out proof.json

      cloister release check release.json --proof proof.json --log-key example.com/releases+…
    """
    from cloister.transparency.log import Log
    from cloister.transparency.manifest import MAX_MANIFEST_BYTES
    from cloister.transparency.proof import prove_release, write_proof

    size = Log.open(folder).checkpoint.size
    if since > size:
        raise InvalidRequest(f"The log has {size} entries: nobody can have seen {since}.", hint="Was it rolled back?")
    proof = write_proof(prove_release(folder, read_file(manifest, MAX_MANIFEST_BYTES), since))
    if out is None:
        typer.echo(proof.decode())
        return
    with needed(f"The proof cannot be written to {out}"):
        write_whole(out, proof)


@log.command("witness")
def witness(
    folder: Folder,
    key: Annotated[Path, typer.Option(metavar="FILE", help="The witness's key; made if --name is given.")],
    state: Annotated[Path, typer.Option(metavar="DIR", help="Where the witness remembers what it signed.")],
    name: Annotated[str, typer.Option(help="Make a key of this name, if there is none yet.", show_default="none")] = "",
    log_key: Annotated[
        str, typer.Option(metavar="VKEY", help="The log's verifier key.", show_default="as on the first visit")
    ] = "",
    attach: Annotated[bool, typer.Option("--attach", help="Put the signature under the log's checkpoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sign the log's checkpoint if it continues the last one signed; prints the signature line.

    A log that was forked or rolled back is refused with exit code 1.

    Examples:

      cloister log witness releases --name witness.example --key witness.key --state witness --attach

      cloister log witness releases --key witness.key --state witness > cosignature
    """
    from cloister.transparency.log import Log
    from cloister.transparency.note import Algorithm, VerifierKey, new_key_file, read_key_file
    from cloister.transparency.witness import Witness

    if name and not key.exists():
        new_key_file(key, name, Algorithm.COSIGNATURE)
    signing = read_key_file(key, Algorithm.COSIGNATURE)
    watched = Log.open(folder)
    cosigner = Witness(signing, state)
    cosigner.meet(VerifierKey.parse(log_key) if log_key else watched.key)
    signature = cosigner.visit(watched, at=datetime.now(UTC))
    if attach:
        watched.attach(signature)
    if as_json:
        told = {"origin": watched.origin, "size": watched.checkpoint.size, "witness": str(signing.verifier)}
        typer.echo(json.dumps({**told, "cosignature": signature.line.removesuffix("\n")}))
        return
    typer.secho(f"Signed {watched.checkpoint.size} entries as {signing.verifier}", dim=True, err=True)
    typer.echo(signature.line, nl=False)


@log.command("attach")
def attach(
    folder: Folder,
    cosignature: Annotated[Path, typer.Argument(help="The line a witness printed.")],
    witness: Annotated[str, typer.Option(metavar="VKEY", help="The witness's verifier key.")],
) -> None:
    """Put a witness's signature under the checkpoint, if it is one.

    Example:

      cloister log attach releases cosignature --witness witness.example+…
    """
    from cloister.transparency.log import Log
    from cloister.transparency.note import VerifierKey, read_signature

    opened = Log.open(folder)
    signature = read_signature(text_of(cosignature).removesuffix("\n"))
    if not VerifierKey.parse(witness).verifies(opened.signed.note.text, signature):
        raise EvidenceInvalid(
            "This is not that witness's signature on the log's checkpoint.",
            hint="If the log grew since, ask the witness again.",
        )
    opened.attach(signature)
    typer.echo(f"{signature.name} signed {opened.checkpoint.size} entries of {opened.origin}.")


@log.command("audit")
def audit_command(
    folder: Folder,
    log_key: LogKey = None,
    witness: WitnessKey = None,
    quorum: Quorum = None,
    seen: Seen = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the whole log from its entries; exits with 1 if anything is wrong.

    Examples:

      cloister log audit releases --log-key example.com/releases+…

      cloister log audit releases --seen checkpoint.last-week --witness witness.example+… --json
    """
    from cloister.transparency.witness import audit

    verdict = audit(folder, trusted=trust_of(log_key, witness, quorum), earlier=checkpoint_in(seen))
    report(verdict, as_json=as_json)
