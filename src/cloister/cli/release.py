"""`cloister release`: what a release is made of, and whether this is it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.generated import settings_command
from cloister.cli.image import image, measure
from cloister.cli.options import AsJson, report
from cloister.cli.trusted_log import TrustedLog, print_result, read_file
from cloister.config import option
from cloister.errors import SetupError
from cloister.files import needed, write_whole

release = typer.Typer(no_args_is_help=True, help="Release manifests: which bytes a release is made of.")
release.command("image")(image)
release.command("measure")(measure)


@release.command("build")
def build(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the manifest.")],
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A source tree of Cloister.", show_default="what runs here")
    ] = None,
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
    measured, files = manifest.measurement().hex(), len(manifest.files)
    found = {"manifest": str(out), "version": manifest.version, "measurement": measured, "files": files}
    found |= {"lock": manifest.lock, "image": manifest.image}
    print_result(as_json, found, measured, f"Version {manifest.version}, {files} files; manifest in {out}.")


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
    shown = {"lock": str(out), "packages": found.packages, "kernels": found.kernels}
    counted = f"{len(found.packages)} packages and {len(found.kernels)} libraries of kernels"
    print_result(as_json, shown, f"{counted}; lock file in {out}.")


def _kernels() -> dict[str, str]:
    from cloister.compute.choose import built_libraries
    from cloister.files import sha256_of

    return {sha256_of(library): how for library, how in built_libraries().items()}


class CheckOptions(TrustedLog):
    manifest: Path = option(..., "The release's manifest.", argument=True)
    source: Path | None = option(None, "A source tree of Cloister.", metavar="DIR", show_default="what runs here")
    proof: Path | None = option(None, "Also check a proof of `cloister log prove`.", metavar="FILE")


@release.command("check")
@settings_command(CheckOptions)
def check(options: CheckOptions) -> None:
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

    data = read_file(options.manifest, MAX_MANIFEST_BYTES)
    wanted = read_manifest(data)
    also = packages_beside(wanted)
    here = measure_running(also) if options.source is None else build_manifest(options.source, also=also)
    if wanted.packages is not None and options.source is None:
        here = replace(here, packages=installed())
    found = Examination()
    found.claim("release_version", wanted.version)
    found.claim("release_measurement", measurement(data).hex())
    wrong = differences(wanted, here)
    more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    found.check("source", not wrong, "; ".join(wrong[:5]) + more, found=f"{len(here.files)} files are the release's")
    if options.proof is not None:
        if not options.log_key:
            raise SetupError("A proof proves nothing without a log to trust.", hint="Give --log-key.")
        shown = read_proof(read_file(options.proof, 1 << 20))
        trusted, earlier = options.trust(), options.earlier()
        found.include(verify_release(shown, measurement(data), at=datetime.now(UTC), trusted=trusted, seen=earlier))
    report(found.verdict(), as_json=options.as_json)
