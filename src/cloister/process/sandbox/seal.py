"""A child's last step: the layers left, in order, the filter last. Each is checked; missing means refused."""

import json
import os
from collections.abc import Callable

from cloister.process.hardening import die_with_parent
from cloister.process.sandbox import kernel, layers, seccomp
from cloister.process.sandbox.credentials import any_capability
from cloister.process.sandbox.kernel import prctl
from cloister.process.sandbox.layers import Layer, Profile, Report
from cloister.process.sandbox.namespaces import empty_root, enter_own, fresh_pid_namespace, leave_host
from cloister.process.sandbox.resources import (
    clean_environment,
    close_all_but,
    limit,
    lock_memory,
    machine_has_swap,
    silence_standard,
)


def seal(profile: Profile) -> Report:
    """Applies what is left. Raises SandboxIncomplete, in a process sealed as far as possible, if a layer is missing."""
    holding = {layer for layer in layers.held() if _still_holds(layer)}
    for layer, apply in _LEFT.items():
        if layer not in profile.without and _succeeds(apply, profile):
            holding.add(layer)
    if Layer.MEMORY_LOCK in holding and Layer.NO_SWAP not in profile.without:
        holding.add(Layer.NO_SWAP)
    report = Report.of(holding)
    report.require(allow_degraded=profile.allow_degraded)
    return report


def _still_holds(layer: Layer) -> bool:
    """What can be asked of the kernel again is asked again."""
    match layer:
        case Layer.PID_NAMESPACE:
            return os.getpid() == 1
        case Layer.CAPABILITIES:
            return not any_capability()
        case Layer.NO_NEW_PRIVS:
            return prctl(kernel.PR_GET_NO_NEW_PRIVS) == 1
        case _:
            return True


def _close_descriptors(profile: Profile) -> bool:
    silence_standard(profile.keep_descriptors)
    close_all_but({0, 1, 2, *profile.keep_descriptors})
    return True


def _forbid_dumps() -> bool:
    prctl(kernel.PR_SET_DUMPABLE, 0)
    return prctl(kernel.PR_GET_DUMPABLE) == 0


def _filter(profile: Profile) -> bool:
    held = seccomp.install(profile.receives_descriptors, profile.futexes)
    return held and seccomp.installed() and not seccomp.devices_answer()


_LEFT: dict[Layer, Callable[[Profile], bool]] = {  # in this order: the filter forbids all that comes before it
    Layer.CLOSED_DESCRIPTORS: _close_descriptors,
    Layer.CLEAN_ENVIRONMENT: lambda _: clean_environment(),
    Layer.RLIMITS: limit,
    Layer.NOT_DUMPABLE: lambda _: _forbid_dumps(),
    Layer.MEMORY_LOCK: lambda _: lock_memory(),
    Layer.NO_SWAP: lambda _: not machine_has_swap(),
    Layer.DEATH_WITH_PARENT: lambda _: die_with_parent(),
    Layer.SECCOMP: _filter,
    Layer.NO_DEVICES: lambda _: True,
    Layer.GPU_IN_TURNS: lambda _: True,
    Layer.OWN_ATTENTION: lambda _: True,
}


def _succeeds(apply: Callable[[Profile], bool], profile: Profile) -> bool:
    try:
        return apply(profile)
    except (OSError, ValueError):
        return False


def available_layers() -> Report:
    """What a vault would get here, started by this user: found out by sealing a process that does nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _as_forkserver(writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        names = pipe.read()
    os.waitpid(child, 0)
    return Report.of(Layer(name) for name in json.loads(names or "[]"))


def _as_forkserver(writer: int) -> None:
    try:
        leave_host()
        empty_root()
        fresh_pid_namespace()
        child = os.fork()
        if child:
            os.close(writer)
            os.waitpid(child, 0)
        else:
            _as_child(writer)
    finally:
        os._exit(0)


def _as_child(writer: int) -> None:
    enter_own()
    report = seal(Profile("vault", {writer}, data_bytes=1 << 24, allow_degraded=True))
    os.write(writer, json.dumps(report.applied).encode())
