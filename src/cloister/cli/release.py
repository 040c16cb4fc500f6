"""`cloister release`: what a release is made of, and whether this is it."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec.structs import replace
from pydantic import BaseModel

from cloister.checks import Examination
from cloister.cli.options import AsJson, TrustedLog, print_result, read_file, report, settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister.files import needed, read_bounded, sha256_of, write_whole
from cloister.image import tdx
from cloister.image.firmware import MAX_FIRMWARE_BYTES, Firmware
from cloister.image.initramfs import release_in, write_image
from cloister.image.snp import Boot, launch_digest
from cloister.process import release_code
from cloister.transparency import manifest as released
from cloister.transparency.proof import read_proof, verify_release

release = typer.Typer(no_args_is_help=True, help="Release manifests: which bytes a release is made of.")
_LOCK_HELP = "What it runs with, from `cloister release lock`. Nodes show no release without it."


@release.command("build")
def build(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the manifest.")],
    source: Annotated[Path | None, typer.Option(metavar="DIR", help="A source tree; else what runs here.")] = None,
    packages: Annotated[Path | None, typer.Option(metavar="FILE", help=_LOCK_HELP)] = None,
    image: Annotated[str | None, typer.Option(metavar="DIGEST", help="The image: sha256:<64 hex digits>.")] = None,
    with_mpc: Annotated[bool, typer.Option("--with-mpc", help="Name the code of the level mpc, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the manifest of a source tree. The same tree gives the same bytes, on any machine.

    Examples:
      cloister release build --source . --packages packages.lock --out release.json
      cloister release build --source . --image sha256:… --out release.json --json
    """
    lock = None if packages is None else released.read_packages(read_file(packages, released.MAX_LOCK_BYTES))
    tree = source if source is not None else released.source_of_running()
    manifest = released.build_manifest(tree, also=("cloister_mpc",) if with_mpc else (), image=image, packages=lock)
    with needed(f"The manifest cannot be written to {out}"):
        write_whole(out, manifest.encoded())
    measured, files = manifest.measurement().hex(), len(manifest.files)
    found = {"manifest": str(out), "version": manifest.version, "measurement": measured, "files": files}
    found |= {"lock": manifest.lock, "image": manifest.image}
    print_result(as_json, found, measured, f"Version {manifest.version}, {files} files; manifest in {out}.")


@release.command("lock")
def lock(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the lock file.")],
    kernels: Annotated[bool, typer.Option(help="Build the kernels here and name them.")] = True,
    as_json: AsJson = False,
) -> None:
    """Write what a release runs with: the packages installed here, Python, and the kernels built here, by their hashes.

    Every file of every package is compared with its RECORD first. Run it where a node's environment was just installed.

    Examples:
      cloister release lock --out packages.lock
      cloister release lock --no-kernels --out packages.lock --json
    """
    from cloister.compute.choose import built_libraries

    if wrong := release_code.changed_files():
        message = f"{len(wrong)} installed files are not as their packages say; the first is {wrong[0]}."
        raise SetupError(message, hint="Install these packages again.")
    built = {sha256_of(library): how for library, how in built_libraries().items()} if kernels else {}
    found = released.Packages(release_code.installed(), built)
    with needed(f"The lock file cannot be written to {out}"):
        write_whole(out, found.encoded())
    shown = {"lock": str(out), "packages": found.packages, "kernels": found.kernels}
    counted = f"{len(found.packages)} packages and {len(found.kernels)} libraries of kernels"
    print_result(as_json, shown, f"{counted}; lock file in {out}.")


class CheckOptions(TrustedLog):
    manifest: Path = option(..., "The release's manifest.", argument=True)
    source: Path | None = option(None, "A source tree of Cloister.", metavar="DIR", show_default="what runs here")
    proof: Path | None = option(None, "Also check a proof of `cloister log prove`.")


@release.command("check")
@settings_command(CheckOptions)
def check(options: CheckOptions) -> None:
    """Check that what runs here, or a source tree, is this release; exits with 1 if not.

    Examples:
      cloister release check release.json
      cloister release check release.json --source .
      cloister release check release.json --proof proof.json --log-key example.com/releases+…
    """
    data = read_file(options.manifest, released.MAX_MANIFEST_BYTES)
    wanted = released.read_manifest(data)
    also = released.packages_beside(wanted)
    tree = options.source
    here = released.measure_running(also) if tree is None else released.build_manifest(tree, also=also)
    if wanted.packages is not None and options.source is None:
        here = replace(here, packages=release_code.installed())
    found = Examination()
    found.claim(release_version=wanted.version, release_measurement=released.measurement(data).hex())
    wrong = released.differences(wanted, here)
    more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    found.check("source", not wrong, "; ".join(wrong[:5]) + more, found=f"{len(here.files)} files are the release's")
    if options.proof is not None:
        if not options.log_key:
            raise SetupError("A proof proves nothing without a log to trust.", hint="Give --log-key.")
        shown = read_proof(read_file(options.proof, 1 << 20))
        trusted, earlier = options.trust(), options.earlier()
        measured, now = released.measurement(data), datetime.now(UTC)
        found.include(verify_release(shown, measured, at=now, trusted=trusted, seen=earlier))
    report(found.verdict(), as_json=options.as_json)


@release.command("image")
def image(
    manifest: Annotated[Path, typer.Argument(help="The release's manifest: `cloister release build`.")],
    root: Annotated[Path, typer.Option(metavar="DIR", help="The root folder: a shell, Python, the packages.")],
    source: Annotated[Path, typer.Option(metavar="DIR", help="The release's source tree.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the image.")],
    as_json: AsJson = False,
) -> None:
    """Write a release's image, an initramfs. The same root folder and release give the same bytes, on any machine.

    Examples:
      cloister release image release.json --root rootfs --source . --out cloister.initrd
      cloister release measure sev-snp --firmware OVMF.fd --kernel vmlinuz --initrd cloister.initrd --vcpus 8
    """
    data = read_file(manifest, released.MAX_MANIFEST_BYTES)
    with needed(f"The image cannot be written to {out}"), out.open("wb") as file:
        digest = write_image(root, source, data, file)
    size = out.stat().st_size
    found = {"image": str(out), "sha256": digest, "bytes": size, "release": released.measurement(data).hex()}
    print_result(as_json, found, f"sha256:{digest}", f"Image of {size >> 20} MiB in {out}.")


class Launch(BaseModel):
    tee: Literal["sev-snp", "tdx"] = option(..., "Which machine starts it.", argument=True)
    firmware: Path = option(..., "OVMF, as the host gets it.")
    kernel: Path = option(..., "Linux: QEMU's -kernel.")
    initrd: Path = option(..., "What `cloister release image` wrote: QEMU's -initrd.")
    append: str = option("", "The kernel's command line: QEMU's -append.", metavar="TEXT")
    vcpus: int = option(1, "SNP: how many processors.", ge=1)
    vcpu_type: str = option("EPYC-Milan", "SNP: QEMU's -cpu.", metavar="NAME")
    vmm: Literal["qemu", "ec2", "gce"] = option("qemu", "SNP: the virtual machine monitor.")
    features: int = option(1, "SNP: the guest's SEV_FEATURES; 33 where debug registers are swapped.", ge=1)
    memory_mib: int = option(4096, "TDX: the machine's memory.", ge=64)
    pages_first: bool = option(False, "TDX: QEMU 8 with Intel's patches, which measures in another order.")
    event_log: Path | None = option(None, "TDX: take RTMR0 from this log of such a machine.", show_default="left out")
    as_json: bool = option(False, "Print JSON instead of text.", name="json")


@release.command("measure")
@settings_command(Launch)
def measure(launch: Launch) -> None:
    """Compute what hardware measures when it starts this image, and name the release in it.

    Prints the lines for a client's policy. Every source file in the image is compared with the release's manifest.

    Not computed: TDX's RTMR0, which depends on every device of the machine; take it from the event log of a machine
    whose quote you verified. RTMR1 is that of OVMF before edk2-stable202505.

    Examples:
      cloister release measure sev-snp --firmware OVMF.fd --kernel vmlinuz --initrd cloister.initrd --vcpus 8
      cloister release measure tdx --firmware OVMF.fd --kernel vmlinuz --initrd cloister.initrd --memory-mib 65536 \\
        --event-log ccel.bin --append 'console=ttyS0' --json
    """
    firmware = Firmware(read_bounded(launch.firmware, MAX_FIRMWARE_BYTES))
    kernel = read_bounded(launch.kernel, 256 << 20)
    snp = launch.tee == "sev-snp"
    with needed(f"{launch.initrd} cannot be read"), launch.initrd.open("rb") as file:
        named, measured = release_in(file)
        file.seek(0)
        digest, size = hashlib.file_digest(file, "sha256" if snp else "sha384").digest(), file.tell()
    if snp:
        machine: dict[str, Any] = {"processors": launch.vcpus, "processor": launch.vcpu_type, "monitor": launch.vmm}
        boot = Boot(hashlib.sha256(kernel).digest(), digest, launch.append)
        found = {"measurement": launch_digest(firmware, boot, features=launch.features, **machine)}
    else:
        found = {"mrtd": tdx.mrtd(firmware, pages_first=launch.pages_first)}
        if launch.event_log:
            found["rtmr0"] = tdx.rtmr0_of(read_bounded(launch.event_log, tdx.MAX_LOG_BYTES))
        found["rtmr1"] = tdx.rtmr1(kernel, size, launch.memory_mib << 20)
        found["rtmr2"] = tdx.rtmr2(launch.append, digest)
    registers = {name: each.hex() for name, each in found.items()}
    if launch.as_json:
        shown = {"tee": launch.tee, "release": measured.hex(), "version": named.version}
        typer.echo(json.dumps({**shown, **registers}, indent=2))
        return
    typer.echo(f"# Cloister {named.version}, release {measured.hex()}")
    if snp:
        typer.echo(f'[snp]\nmeasurements = ["{registers["measurement"]}"]')
        return
    typer.echo("[[tdx.launches]]")
    for name, each in registers.items():
        typer.echo(f'{name} = "{each}"')
    if "rtmr0" not in registers:
        typer.echo("# rtmr0: not computed; give --event-log, or compare a verified quote of such a machine")
