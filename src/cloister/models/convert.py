"""A GGUF file's folder, named when every byte is on the disk, with each file's SHA-256. A child process converts, as
Ctrl-C must end the command at once; the next conversion removes a killed one's."""

import os
import shutil
import socket
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec

from cloister.errors import ModelCorrupt, SetupError
from cloister.files import needed, only_one, sha256_of, sync
from cloister.messages.cli_converter import ConversionProgress, Convert, Converted, FromConverter
from cloister.messages.lifecycle import StartFailed, why_not_started
from cloister.process.blocking import BlockingEndpoint
from cloister.process.child import run_module
from cloister.process.hardening import ending_interrupts
from cloister.terminal import error_console

FILE_NAME = "cloister-manifest.json"
CONVERTER = "cloister.models.gguf_converter"
PATIENCE_S = 1.0  # a disk may hold the converter; the kernel ends it then


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    source: str
    source_sha256: str
    dtype: str
    files: dict[str, FileRecord]


def read_manifest(folder: Path) -> Manifest | None:
    """None for a folder that we did not convert."""
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as wrong:
        raise ModelCorrupt(f"The manifest of the model in {folder} does not decode.", hint=_again(folder)) from wrong


def check_files(folder: Path, manifest: Manifest, *, weights: bool) -> None:
    """Compare the weights, or all other files, with their digests. A process checks the files it reads."""
    for name, record in manifest.files.items():
        if name.endswith(".safetensors") != weights:
            continue
        path = folder / name
        if not path.is_file():
            raise ModelCorrupt(f"The converted model lacks {path}.", hint=_again(folder))
        if path.stat().st_size != record.bytes or sha256_of(path) != record.sha256:
            raise ModelCorrupt(f"{path} has changed since it was converted.", hint=_again(folder))


def _again(folder: Path) -> str:
    return f"Remove the folder {folder}: the model is converted again at the next start."


def convert_gguf(gguf: Path, target: Path, *, name: str, sha256: str) -> None:
    """Make `target` from the GGUF file unless it exists. SIGINT and SIGTERM raise KeyboardInterrupt."""
    with writing_to(target.parent), ending_interrupts():
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_one(target.parent / f".{target.name}.lock"):
            if target.is_dir():
                return
            for abandoned in target.parent.glob(f".partial-{target.name}-*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            partial = target.parent / f".partial-{target.name}-{os.getpid()}"
            partial.mkdir()
            try:
                _have_converted(Convert(name, str(gguf), sha256, str(partial)))
                partial.rename(target)
                sync(target.parent)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise


def writing_to(folder: Path) -> AbstractContextManager[None]:
    """A conversion that cannot write is a SetupError."""
    hint = "Make room there, or name another folder in CLOISTER_CACHE."
    return needed(f"The converted model cannot be written to {folder}", hint)


def _have_converted(order: Convert) -> None:
    """Wait for the converter, and raise its error if it fails. It has ended on return, either way."""
    ours, theirs = socket.socketpair()
    what = f"Converting {order.name}"
    # Not loaded when this module is only imported, to open a model.
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = error_console()
    if not console.is_terminal:
        console.print(f"{what}…")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with ours, Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        converter = run_module(CONVERTER, theirs)
        control: BlockingEndpoint[FromConverter] = BlockingEndpoint(ours, FromConverter)
        said: FromConverter | None = None  # stays so if the converter closes the connection
        try:
            with suppress(ConnectionError):
                control.send(order)
                while isinstance(said := control.next(), ConversionProgress):
                    bar.update(task, completed=said.part)
            if not isinstance(said, Converted | StartFailed):
                _wait_for(converter)
        finally:
            converter.kill()
            _wait_for(converter)
    if isinstance(said, StartFailed):
        raise why_not_started(said)
    if not isinstance(said, Converted):
        status = converter.returncode
        how = f" (by signal {-status})" if status is not None and status < 0 else ""
        message = f"The process that converted {order.name} ended before it was done{how}."
        hint = "Make sure that memory is free, then try again."
        raise SetupError(message, hint=hint)


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
