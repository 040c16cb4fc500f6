"""Entry of a party: `cloister mpc party` becomes `python -m cloister.mpc.party.process FILE RANK`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from cloister.errors import CloisterError, SetupError
from cloister.mpc.config import PartiesConfig, read_config, refuse_insecure
from cloister.mpc.party.party import Party
from cloister.process.child import environment
from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks, name_process

WITH_PARENT = "--with-parent"
ALLOW_INSECURE = "--allow-insecure-beaver"


def command(file: Path, rank: int, *, allow_insecure_beaver: bool, with_parent: bool = False) -> list[str]:
    """What starts a party; `with_parent`: it ends with whoever started it."""
    words = [WITH_PARENT] * with_parent + [ALLOW_INSECURE] * allow_insecure_beaver
    return [sys.executable, "-m", "cloister.mpc.party.process", str(file.absolute()), str(rank), *words]


def become_party(file: Path, rank: int, *, allow_insecure_beaver: bool) -> NoReturn:
    """Replace this program by the party."""
    os.execve(sys.executable, command(file, rank, allow_insecure_beaver=allow_insecure_beaver), environment())


async def serve(config: PartiesConfig, rank: int) -> None:
    """Until interrupted."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    party = Party(config, rank)
    await party.start()
    logging.getLogger(__name__).info("Party %d listens on %s.", rank, config.party[rank].control)
    try:
        await stop.wait()
    finally:
        await party.close()


def main(arguments: list[str]) -> NoReturn:
    name_process("party")
    hide_tracebacks()
    forbid_core_dumps()
    if WITH_PARENT in arguments:
        die_with_parent()
    rank = int(arguments[1])
    logging.basicConfig(level=logging.INFO, format=f"party {rank}: %(message)s", stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # strangers' failed handshakes, with tracebacks
    status = 0
    try:
        config = read_config(Path(arguments[0]))
        refuse_insecure(config, allow_insecure_beaver=ALLOW_INSECURE in arguments)
        asyncio.run(serve(config, rank))
    except CloisterError as reason:
        print(f"party {rank}: Error: {reason.message} {reason.hint or ''}".rstrip(), file=sys.stderr)
        status = 2 if isinstance(reason, SetupError) else 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
