"""What a process on the network gives up once it listens: root, capabilities, files, processes, connections, signals.
An attacker in it can answer wrongly, but change no other's code or keys."""

import os

from cloister.errors import SandboxIncomplete
from cloister.process.hardening import die_with_parent, forbid_core_dumps
from cloister.process.sandbox import kernel, landlock, seccomp
from cloister.process.sandbox.credentials import become_nobody, drop_capabilities, holds_capability
from cloister.process.sandbox.kernel import prctl
from cloister.process.sandbox.layers import Layer


def confine_or_refuse(name: str, *, allow_degraded: bool) -> None:
    """SandboxIncomplete where the kernel lets some of it stay and that was not allowed."""
    if (missing := confine()) and not allow_degraded:
        raise SandboxIncomplete(
            f"The {name} cannot be confined here: {', '.join(missing)}.",
            hint="Enable these, or accept a weaker sandbox with --allow-degraded-sandbox.",
        )


def confine() -> tuple[str, ...]:
    """What could not be given up. Call it while there is one thread: others keep theirs."""
    missing: list[str] = []
    lone = len(os.listdir("/proc/self/task")) == 1
    become_nobody()
    prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if not landlock.forbid_files_and_network() or not lone:
        missing.append(Layer.LANDLOCK.value)
    drop_capabilities()
    if holds_capability() or not lone:
        missing.append(Layer.CAPABILITIES.value)
    forbid_core_dumps()
    die_with_parent()
    if not seccomp.install_serving():
        missing.append(Layer.SECCOMP.value)
    return tuple(missing)
