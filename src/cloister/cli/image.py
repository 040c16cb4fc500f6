"""`cloister release image`: a release as an image. `cloister release measure`: what a launch of that measures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import BaseModel

from cloister.cli.generated import settings_command
from cloister.cli.options import AsJson
from cloister.config import at_least, option
from cloister.errors import EvidenceInvalid
from cloister.files import needed, read_bounded

if TYPE_CHECKING:
    from cloister.image.firmware import Firmware

MAX_KERNEL_BYTES = 256 << 20


def image(
    manifest: Annotated[Path, typer.Argument(help="The release's manifest: `cloister release build`.")],
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="The root folder: a shell, Python, and the release's packages.")
    ],
    source: Annotated[Path, typer.Option(metavar="DIR", help="The release's source tree.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the image.")],
    as_json: AsJson = False,
) -> None:
    """Write a release's image, an initramfs. The same root folder and release give the same bytes, on any machine.

    Examples:
      cloister release image release.json --root rootfs --source . --out cloister.initrd
      cloister release measure sev-snp --firmware OVMF.fd --kernel vmlinuz --initrd cloister.initrd --vcpus 8
    """
    from cloister.image.initramfs import write_image
    from cloister.transparency.manifest import MAX_MANIFEST_BYTES, measurement

    data = read_bounded(manifest, MAX_MANIFEST_BYTES, too_large=EvidenceInvalid)
    with needed(f"The image cannot be written to {out}"), out.open("wb") as file:
        digest = write_image(root, source, data, file)
    if as_json:
        written = {"image": str(out), "sha256": digest, "bytes": out.stat().st_size}
        typer.echo(json.dumps({**written, "release": measurement(data).hex()}))
        return
    typer.secho(f"Image of {out.stat().st_size >> 20} MiB in {out}.", dim=True, err=True)
    typer.echo(f"sha256:{digest}")


class Launch(BaseModel):
    tee: Literal["sev-snp", "tdx"] = option(..., "Which machine starts it.", argument=True)
    firmware: Path = option(..., "OVMF, as the host gets it.", metavar="FILE")
    kernel: Path = option(..., "Linux: QEMU's -kernel.", metavar="FILE")
    initrd: Path = option(..., "What `cloister release image` wrote: QEMU's -initrd.", metavar="FILE")
    append: str = option("", "The kernel's command line: QEMU's -append.", metavar="TEXT")
    vcpus: int = option(1, "SNP: how many processors.", bounds=at_least(1))
    vcpu_type: str = option("EPYC-Milan", "SNP: QEMU's -cpu.", metavar="NAME")
    vmm: Literal["qemu", "ec2", "gce"] = option("qemu", "SNP: the virtual machine monitor.")
    features: int = option(
        1, "SNP: the guest's SEV_FEATURES; 33 where debug registers are swapped.", bounds=at_least(1)
    )
    memory_mib: int = option(4096, "TDX: the machine's memory.", bounds=at_least(64))
    pages_first: bool = option(False, "TDX: QEMU 8 with Intel's patches, which measures in another order.")
    event_log: Path | None = option(
        None, "TDX: take RTMR0 from this log of such a machine.", metavar="FILE", show_default="left out"
    )
    as_json: bool = option(False, "Print JSON instead of text.", name="json")


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
    from cloister.image.firmware import MAX_FIRMWARE_BYTES, Firmware
    from cloister.image.initramfs import release_in

    firmware = Firmware(read_bounded(launch.firmware, MAX_FIRMWARE_BYTES))
    kernel = read_bounded(launch.kernel, MAX_KERNEL_BYTES)
    snp = launch.tee == "sev-snp"
    with needed(f"{launch.initrd} cannot be read"), launch.initrd.open("rb") as file:
        release, measured = release_in(file)
        file.seek(0)
        digest, size = hashlib.file_digest(file, "sha256" if snp else "sha384").digest(), file.tell()
    found = _guest(launch, firmware, kernel, digest) if snp else _trust_domain(launch, firmware, kernel, digest, size)
    registers = {name: each.hex() for name, each in found.items()}
    if launch.as_json:
        named = {"tee": launch.tee, "release": measured.hex(), "version": release.version}
        typer.echo(json.dumps({**named, **registers}, indent=2))
        return
    typer.echo(f"# Cloister {release.version}, release {measured.hex()}")
    if snp:
        typer.echo(f'[snp]\nmeasurements = ["{registers["measurement"]}"]')
        return
    typer.echo("[[tdx.launches]]")
    for name, each in registers.items():
        typer.echo(f'{name} = "{each}"')
    if "rtmr0" not in registers:
        typer.echo("# rtmr0: not computed; give --event-log, or compare a verified quote of such a machine")


def _guest(launch: Launch, firmware: Firmware, kernel: bytes, initrd_digest: bytes) -> dict[str, bytes]:
    from cloister.image.snp import Boot, launch_digest

    boot = Boot(hashlib.sha256(kernel).digest(), initrd_digest, launch.append)
    digest = launch_digest(
        firmware,
        boot,
        processors=launch.vcpus,
        processor=launch.vcpu_type,
        monitor=launch.vmm,
        features=launch.features,
    )
    return {"measurement": digest}


def _trust_domain(
    launch: Launch, firmware: Firmware, kernel: bytes, initrd_digest: bytes, initrd_bytes: int
) -> dict[str, bytes]:
    from cloister.image import event_log, tdx

    return {
        "mrtd": tdx.mrtd(firmware, pages_first=launch.pages_first),
        **(
            {"rtmr0": event_log.rtmr0_of(read_bounded(launch.event_log, event_log.MAX_LOG_BYTES))}
            if launch.event_log
            else {}
        ),
        "rtmr1": tdx.rtmr1(kernel, initrd_bytes, launch.memory_mib << 20),
        "rtmr2": tdx.rtmr2(launch.append, initrd_digest),
    }
