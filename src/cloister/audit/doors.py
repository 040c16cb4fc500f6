"""Ways into a running node for root in its namespace: sockets that listen, signals that are caught, core dumps."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloister.audit.finding import Finding, broken, held
from cloister.audit.target import Target, takes_root

KNOWN = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGFPE}
"""The keys file is read again, the node drains, the node stops; libraries of numbers catch errors in arithmetic."""
NAMED = 31  # above these are signals of the C library
LISTENING, BOUND = "0A", "07"  # states of TCP and UDP sockets in /proc/net
_ACCEPTS = 1 << 16


@takes_root
def sockets(target: Target) -> Finding:
    """No process of the node listens anywhere but at the API's port."""
    family = target.processes()
    for pid, name in family.items():
        for place in _listening(pid):
            if place != f"tcp port {target.address.port}":
                return broken(f"{name} listens at {place}.")
    return held(f"Of {len(family)} processes none listens anywhere but at port {target.address.port}.")


def _listening(pid: int) -> Iterator[str]:
    own = set(_inodes(pid))
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for words in _table(pid, kind):
            if words[9] in own and words[3] in (LISTENING, BOUND):
                yield f"{kind.removesuffix('6')} port {int(words[1].rpartition(':')[2], 16)}"
    for words in _table(pid, "unix"):
        if words[6] in own and int(words[3], 16) & _ACCEPTS:
            yield "a socket in the file system or of an abstract name"


def _table(pid: int, kind: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]]
    except OSError:  # a process that has ended, a kernel without this kind
        return []


def _inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(each)):
                    yield found[1]


@takes_root
def signals(target: Target) -> Finding:
    """No signal makes a process show or open more: each catches those alone that reload keys, drain or stop."""
    family = target.processes()
    for pid, name in family.items():
        caught = int(_field(Path(f"/proc/{pid}/status"), r"SigCgt:\s+(\w+)"), 16)
        others = [each for each in signal.Signals if each <= NAMED and caught >> each - 1 & 1 and each not in KNOWN]
        if others:
            return broken(f"{name} catches {others[0].name}.")
    names = ", ".join(sorted(each.name for each in KNOWN))
    return held(f"{len(family)} processes catch no signal but {names}.")


@takes_root
def dumps(target: Target) -> Finding:
    """No process may leave its memory in a core dump, and none can raise that limit again without a privilege."""
    family = target.processes()
    for pid, name in family.items():
        if _field(Path(f"/proc/{pid}/limits"), r"Max core file size\s+\S+\s+(\S+)") != "0":
            return broken(f"{name} may write a core dump.")
    return held(f"{len(family)} processes have a hard limit of 0 bytes for core dumps.")


def _field(file: Path, pattern: str) -> str:
    """ "0" for a process that has ended."""
    try:
        found = re.search(pattern, file.read_text())
    except OSError:
        return "0"
    return found[1] if found else "?"
