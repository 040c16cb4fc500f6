"""`cloister log`: a public log of releases in a plain folder, its witnesses and its auditors."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import AsJson, TrustedLog, print_result, read_file, report, settings_command, text_of
from cloister.config import option
from cloister.errors import EvidenceInvalid, InvalidRequest, SetupError
from cloister.files import needed, write_whole
from cloister.transparency.log import Log
from cloister.transparency.manifest import MAX_MANIFEST_BYTES, measurement
from cloister.transparency.note import Algorithm, VerifierKey, read_key_file, read_signature
from cloister.transparency.proof import prove_release, publish, revoke, write_proof
from cloister.transparency.witness import Witness, audit

log = typer.Typer(no_args_is_help=True, help="The transparency log: every release, for everyone to see.")

Folder = Annotated[Path, typer.Argument(metavar="LOG", help="The log's folder.")]
Key = Annotated[Path, typer.Option(metavar="FILE", help="The log's signing key. Keep it out of the log's folder.")]
Origin = Annotated[str, typer.Option(metavar="NAME", help="The log's name: an address without a scheme is usual.")]
Manifest = Annotated[Path, typer.Argument(help="What `cloister release build` wrote.")]
Expires = Annotated[str | None, typer.Option(metavar="DAY", help="The last day clients accept it: 2027-01-31.")]
Measured = Annotated[str, typer.Argument(metavar="MEASUREMENT", help="The release's measurement, in hex.")]
WitnessKey = Annotated[str, typer.Option(metavar="VKEY", help="The witness's verifier key.")]


@log.command("create")
def create(folder: Folder, origin: Origin, key: Key, as_json: AsJson = False) -> None:
    """Make an empty log and its key; prints the verifier key that clients must be given.

    Example:
      cloister log create releases --origin example.com/releases --key releases.key
    """
    if key.resolve().is_relative_to(folder.resolve()):
        raise SetupError("The log's folder is public; its signing key must not lie in it.", hint="Name another file.")
    signing = read_key_file(key, new=origin)
    if signing.name != origin:
        raise SetupError(f"{key} is the key of {signing.name}, not of {origin}.", hint="Name a new file.")
    made = Log.create(folder, signing)
    found = {"origin": made.origin, "verifier_key": str(made.key), "size": 0}
    note = f"Log in {folder}, signing key in {key}. Clients trust it by this verifier key:"
    print_result(as_json, found, str(made.key), note)


@log.command("append")
def append(folder: Folder, manifest: Manifest, key: Key, expires: Expires = None, as_json: AsJson = False) -> None:
    """Put a release into the log. One that is there stays where it is, unless it gets another last day.

    Examples:
      cloister log append releases release.json --key releases.key
      cloister log append releases release.json --key releases.key --expires 2027-01-31
    """
    opened = Log.open(folder)
    data = read_file(manifest, MAX_MANIFEST_BYTES)
    index, new = publish(opened, data, read_key_file(key), expires=_day(expires))
    size, measured = opened.checkpoint.size, measurement(data).hex()
    found = {"index": index, "new": new, "size": size, "measurement": measured}
    print_result(as_json, found, f"{measured} is entry {index} of {size}{'' if new else ', as before'}.")


@log.command("revoke")
def revoke_command(folder: Folder, measurement: Measured, key: Key, as_json: AsJson = False) -> None:
    """Take a release back: clients refuse it from the next checkpoint on, and it cannot be published again.

    Example:
      cloister log revoke releases 5f3c… --key releases.key
    """
    try:
        measured = bytes.fromhex(measurement)
    except ValueError:
        measured = b""
    if len(measured) != 32:
        raise InvalidRequest("A measurement has 64 hexadecimal digits.", hint="`cloister log audit` lists them.")
    opened = Log.open(folder)
    index, new = revoke(opened, measured, read_key_file(key))
    size, before = opened.checkpoint.size, "" if new else ", as before"
    found = {"index": index, "new": new, "size": size}
    print_result(as_json, found, f"{measured.hex()} is revoked by entry {index} of {size}{before}.")


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest("--expires takes a day.", hint="Like: 2027-01-31") from None


@log.command("prove")
def prove(
    folder: Folder,
    manifest: Manifest,
    since: Annotated[int, typer.Option(min=0, help="How many entries the log had when the verifier saw it last.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the proof; else printed.")] = None,
) -> None:
    """Prove, as JSON, that a release is in the log and that the log only grew.

    Examples:
      cloister log prove releases release.json --out proof.json
      cloister release check release.json --proof proof.json --log-key example.com/releases+…
    """
    size = Log.open(folder).checkpoint.size
    if since > size:
        raise InvalidRequest(f"The log has {size} entries; {since} cannot have been seen.", hint="Was it rolled back?")
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
    log_key: Annotated[str, typer.Option(metavar="VKEY", help="The log's key; else as on the first visit.")] = "",
    attach: Annotated[bool, typer.Option("--attach", help="Put the signature under the log's checkpoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sign the log's checkpoint if it continues the last one signed; prints the signature line.

    A log that was forked or rolled back is refused with exit code 1.

    Examples:
      cloister log witness releases --name witness.example --key witness.key --state witness --attach
      cloister log witness releases --key witness.key --state witness > cosignature
    """
    signing = read_key_file(key, Algorithm.COSIGNATURE, new=name)
    watched = Log.open(folder)
    cosigner = Witness(signing, state)
    cosigner.meet(VerifierKey.parse(log_key) if log_key else watched.key)
    signature = cosigner.visit(watched, at=datetime.now(UTC))
    if attach:
        watched.attach(signature)
    size, line, name = watched.checkpoint.size, signature.line.removesuffix("\n"), str(signing.verifier)
    found = {"origin": watched.origin, "size": size, "witness": name, "cosignature": line}
    print_result(as_json, found, line, f"Signed {size} entries as {name}")


@log.command("attach")
def attach(
    folder: Folder,
    cosignature: Annotated[Path, typer.Argument(help="The line a witness printed.")],
    witness: WitnessKey,
) -> None:
    """Put a witness's signature under the checkpoint, if it is one.

    Example:
      cloister log attach releases cosignature --witness witness.example+…
    """
    opened = Log.open(folder)
    signature = read_signature(text_of(cosignature).removesuffix("\n"))
    if not VerifierKey.parse(witness).verifies(opened.signed.note.text, signature):
        hint = "If the log grew since, ask the witness again."
        raise EvidenceInvalid("This is not that witness's signature on the log's checkpoint.", hint=hint)
    opened.attach(signature)
    typer.echo(f"{signature.name} signed {opened.checkpoint.size} entries of {opened.origin}.")


class AuditOptions(TrustedLog):
    folder: Path = option(..., "The log's folder.", argument=True, metavar="LOG")


@log.command("audit")
@settings_command(AuditOptions)
def audit_command(options: AuditOptions) -> None:
    """Recompute the whole log from its entries; exits with 1 if anything is wrong.

    Examples:
      cloister log audit releases --log-key example.com/releases+…
      cloister log audit releases --seen checkpoint.last-week --witness witness.example+… --json
    """
    verdict = audit(options.folder, trusted=options.trust(), earlier=options.earlier())
    report(verdict, as_json=options.as_json)
