"""`cloister release image`: a release as an image. `cloister release measure`: what a launch of that measures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.options import AsJson
from cloister.errors import EvidenceInvalid
from cloister.files import needed, read_bounded

if TYPE_CHECKING:
    from cloister.image.firmware import Firmware

MAX_KERNEL_BYTES = 256 << 20
Tee = Literal["sev-snp", "tdx"]
Monitor = Literal["qemu", "ec2", "gce"]


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
        told = {"image": str(out), "sha256": digest, "bytes": out.stat().st_size}
        typer.echo(json.dumps({**told, "release": measurement(data).hex()}))
        return
    typer.secho(f"Image of {out.stat().st_size >> 20} MiB in {out}.", dim=True, err=True)
    typer.echo(f"sha256:{digest}")


def measure(
    tee: Annotated[Tee, typer.Argument(help="Which machine starts it.")],
    firmware: Annotated[Path, typer.Option(metavar="FILE", help="OVMF, as the host gets it.")],
    kernel: Annotated[Path, typer.Option(metavar="FILE", help="Linux: QEMU's -kernel.")],
    initrd: Annotated[Path, typer.Option(metavar="FILE", help="What `cloister release image` wrote: QEMU's -initrd.")],
    append: Annotated[str, typer.Option(metavar="TEXT", help="The kernel's command line: QEMU's -append.")] = "",
    vcpus: Annotated[int, typer.Option(min=1, help="SNP: how many processors.")] = 1,
    vcpu_type: Annotated[str, typer.Option(metavar="NAME", help="SNP: QEMU's -cpu.")] = "EPYC-Milan",
    vmm: Annotated[Monitor, typer.Option(help="SNP: who starts it.")] = "qemu",
    features: Annotated[
        int, typer.Option(min=1, help="SNP: the guest's SEV_FEATURES; 33 where debug registers are swapped.")
    ] = 1,
    memory_mib: Annotated[int, typer.Option(min=64, help="TDX: the machine's memory.")] = 4096,
    pages_first: Annotated[
        bool, typer.Option("--pages-first", help="TDX: QEMU 8 with Intel's patches, which measures in another order.")
    ] = False,
    event_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TDX: take RTMR0 from this log of such a machine.", show_default="left out"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what hardware measures when it starts this image, and say which release that is.

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

    volume = Firmware(read_bounded(firmware, MAX_FIRMWARE_BYTES))
    linux = read_bounded(kernel, MAX_KERNEL_BYTES)
    with needed(f"{initrd} cannot be read"), initrd.open("rb") as file:
        release, measured = release_in(file)
        file.seek(0)
        algorithm = "sha256" if tee == "sev-snp" else "sha384"
        digest, size = hashlib.file_digest(file, algorithm).digest(), file.tell()
    if tee == "sev-snp":
        from cloister.image.snp import Boot, launch_digest

        boot = Boot(hashlib.sha256(linux).digest(), digest, append)
        found = {
            "measurement": launch_digest(
                volume, boot, processors=vcpus, processor=vcpu_type, monitor=vmm, features=features
            )
        }
    else:
        found = _td(volume, linux, digest, size, append, memory_mib << 20, pages_first, event_log)
    registers = {name: each.hex() for name, each in found.items()}
    if as_json:
        told = {"tee": tee, "release": measured.hex(), "version": release.version}
        typer.echo(json.dumps({**told, **registers}, indent=2))
        return
    typer.echo(f"# Cloister {release.version}, release {measured.hex()}")
    if tee == "sev-snp":
        typer.echo(f'[snp]\nmeasurements = ["{registers["measurement"]}"]')
        return
    typer.echo("[[tdx.launches]]")
    for name, each in registers.items():
        typer.echo(f'{name} = "{each}"')
    if "rtmr0" not in registers:
        typer.echo("# rtmr0: not computed; give --event-log, or compare a verified quote of such a machine")


def _td(
    volume: Firmware,
    linux: bytes,
    initrd_digest: bytes,
    initrd_bytes: int,
    command: str,
    memory: int,
    pages_first: bool,
    log: Path | None,
) -> dict[str, bytes]:
    from cloister.image import event_log, tdx

    found = {"mrtd": tdx.mrtd(volume, pages_first=pages_first)}
    if log is not None:
        found["rtmr0"] = event_log.rtmr0_of(read_bounded(log, event_log.MAX_LOG_BYTES))
    found["rtmr1"] = tdx.rtmr1(linux, initrd_bytes, memory)
    found["rtmr2"] = tdx.rtmr2(command, initrd_digest)
    return found
