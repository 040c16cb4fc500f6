"""Attempts of root on the node's machine, from outside of its processes: what they keep, what they may reach."""

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from stat import S_ISREG
from time import sleep, time

from cloister.audit import remains
from cloister.audit.finding import Finding, broken, held, not_tried, off
from cloister.audit.memory import Search, memory_files_of, start_of, stopped
from cloister.audit.needles import Secret
from cloister.audit.target import Target, random_words, takes_root, together
from cloister.levels import LEVELS, OPEN

SEALED = ("cl-vault", "cl-service", "cl-attention", "cl-sealed-api", "cl-detector")
PARTY = "cl-party"
ENVIRONMENT = ("LD_", "PYTHON", "CLOISTER_", "HTTP_PROXY", "HTTPS_PROXY", "SSL_")
CLONE_NEWNET = 0x40000000
ANOTHER_USER = 65533  # not the one that the gateway becomes
FORGOTTEN_AFTER_S = 12.0  # a view is kept for ten seconds after an answer's end
TOKENS = 4
AT_ONCE = 8
MARKED = '<redacted category="name">John Miller</redacted>'  # at obfuscated a prompt has a secret


@takes_root
def retention(target: Target) -> Finding:
    return _kept_after(target, target.quick_levels)


@takes_root
def retention_on_shares(target: Target) -> Finding:
    """A request would start parties, which take gigabytes: only where they run."""
    slow = tuple(name for name in target.levels if LEVELS[name].slow)
    if not slow:
        return off("No level of this node computes on shares.")
    if PARTY not in target.processes().values():
        return not_tried("No parties run here. Ask once at the level mpc, and audit again.")
    return _kept_after(target, slow)


def _kept_after(target: Target, levels: tuple[str, ...]) -> Finding:
    """A canary in prompts at each level, many at once; after the answers all that could keep it is searched. The node
    is stopped while its memory is read. A search that misses what is in this process is no search."""
    canary, begun = random_words(4), time()
    secret = Secret(canary, _tokens(target, canary))
    for level in levels:
        prompt = f"{f'Ask {MARKED}. ' * LEVELS[level].obfuscates}Remember: {canary}"
        crowd = 1 if LEVELS[level].slow else 2 if LEVELS[level].obfuscates else AT_ONCE
        replies = together(*[partial(target.complete, prompt, level, tokens=TOKENS)] * crowd)
        if refused := [reply.status for reply in replies if reply.status != 200]:
            return not_tried(f"At {level} a request was refused (HTTP {refused[0]}).")
    target.ask("DELETE", "/v1/sessions/audit?private=true")
    sleep(FORGOTTEN_AFTER_S)
    if not Search.of(secret).look_into(os.getpid()):
        return not_tried("The search does not find the canary where it is, in this process.")
    family = target.processes()
    with stopped(family):
        if (keeper := _in_processes(family, secret)) is not None:
            return broken(keeper)
    changed = list(remains.changed_since(begun, remains.disks(target.pid or 0)))
    for path in (*changed, *remains.swapped()):
        if any(secret.found_in(piece) for piece in remains.pieces(path)):
            return broken(f"A prompt's words are in {path}.")
    if kept := [name for name, said in remains.logged(begun) if secret.found_in(said)]:
        return broken(f"A prompt's words are in {kept[0]}.")
    searched = f"{len(family)} processes, {len(changed)} files of all disks, swap and journals"
    return held(f"After answers at {', '.join(levels)}, {searched} keep no word or token.")


def _in_processes(family: dict[int, str], secret: Secret) -> str | None:
    """What keeps the secret: memory, memory files, files that may be written to, arguments, sockets and pipes."""
    search = Search.of(secret)
    for pid, name in family.items():
        if places := search.look_into(pid):
            return f"{name} keeps a prompt's words: {places[0].partition(' at ')[0]}."
        kept = [file for file, data in memory_files_of(pid).items() if secret.found_in(data)]
        kept += [file for open_at, file in _written(pid) if any(map(secret.found_in, remains.pieces(open_at)))]
        kept += [place for place, data in remains.unread(pid) if secret.found_in(data)]
        if kept or secret.found_in(start_of(pid)):
            return f"{name} has a prompt's words in {kept[0] if kept else 'its arguments or environment'}."
    return None


def _tokens(target: Target, canary: str) -> tuple[int, ...]:
    """Some tokens that only the canary has, as the provider sees them at `open`; none if it shows none."""
    reply = target.complete(f"Remember: {canary}", OPEN, tokens=1)
    if reply.status != 200:
        return ()
    view = target.ask("GET", f"/v1/requests/{reply.document['id']}/view")
    tokens = view.document["choices"][0]["prompt"]["tokens"] if view.status == 200 else ()
    return tuple(tokens[-12:-4])


def _written(pid: int) -> Iterator[tuple[Path, str]]:
    """Files that this process may write to, also removed ones: where to read each, and its name."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text().splitlines()
            flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
            name = os.readlink(each)
            if flags & os.O_ACCMODE and name.startswith("/") and S_ISREG(each.stat().st_mode):
                yield each, name


@takes_root
def offloading(target: Target) -> Finding:
    """No part of a prompt goes to a disk: no sealed process has a file to write to, or a page in swap."""
    sealed = _sealed(target)
    for pid, name in sealed.items():
        if files := [path for _, path in _written(pid) if not path.startswith(("/memfd:", "/dev/"))]:
            return broken(f"{name} may write to {files[0]}.")
        status = Path(f"/proc/{pid}/status").read_text()
        swapped = next((line.split()[1] for line in status.splitlines() if line.startswith("VmSwap:")), "0")
        if swapped != "0":
            return broken(f"{name} has {swapped} kB in swap.")
    return off(f"Keys and values stay in memory: {len(sealed)} sealed processes have no file to write to, no swap.")


def _sealed(target: Target) -> dict[int, str]:
    return {pid: name for pid, name in target.processes().items() if name in SEALED}


@takes_root
def environment(target: Target) -> Finding:
    """Nothing that was set from outside, and could change what runs, is in a sealed process's environment."""
    for pid, name in _sealed(target).items():
        for entry in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"):
            variable = entry.partition("=")[0]
            if variable.startswith(ENVIRONMENT):
                return broken(f"{name} has the environment variable {variable}.")
    return held("Sealed processes have no environment variable that changes what runs.")


def _in_child(attempt: Callable[[], bool]) -> bool | None:
    """Whether the attempt succeeds in a process of this one, which it may change; None if it cannot be made."""
    child = os.fork()
    if child == 0:
        outcome = 2
        with suppress(BaseException):
            outcome = 0 if attempt() else 1
        os._exit(outcome)
    _, status = os.waitpid(child, 0)
    return {0: True, 1: False}.get(os.waitstatus_to_exitcode(status))


@takes_root
def network(target: Target) -> Finding:
    """From within the network that a sealed process has, nothing can be reached, not even the node itself."""
    reached = [pid for pid in _sealed(target) if _in_child(lambda pid=pid: _connects(pid, target))]  # type: ignore[misc]
    if reached:
        return broken(f"{_sealed(target).get(reached[0], 'A sealed process')} reaches the node's own port.")
    return held(f"From within {len(_sealed(target))} sealed processes the node's own port cannot be reached.")


def _connects(pid: int, target: Target) -> bool:
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    with suppress(OSError), socket.create_connection((target.address.host, target.address.port), 2):
        return True
    return False


@takes_root
def other_users(target: Target) -> Finding:
    """Another user of the machine reads no memory of the node."""
    family = target.processes()
    readable = [pid for pid in family if _in_child(lambda pid=pid: _reads(pid)) is not False]  # type: ignore[misc]
    if readable:
        return broken(f"Another user reads the memory of {family[readable[0]]}.")
    return held(f"Another user is refused the memory of {len(family)} processes.")


def _reads(pid: int) -> bool:
    os.setgroups([])
    os.setgid(ANOTHER_USER)
    os.setuid(ANOTHER_USER)
    try:
        with open(f"/proc/{pid}/mem", "rb"):
            return True
    except (FileNotFoundError, PermissionError):  # it has ended, or is not ours
        return False


@takes_root
def writable_code(target: Target) -> Finding:
    """No code can be made in a sealed process: no page of it is both writable and executable."""
    for pid, name in _sealed(target).items():
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            rights = line.split()[1]
            if "w" in rights and "x" in rights:
                return broken(f"{name} has memory that is writable and executable.")
    return held(f"{len(_sealed(target))} sealed processes have no memory that is writable and executable.")
