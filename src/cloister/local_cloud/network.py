"""Network namespaces for the nodes of a cloud on one machine: a bridge, and for each node a pair of interfaces.

Names follow from the cloud's folder, so that the next run finds and removes what a crashed one left.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

from cloister.errors import SetupError

FIRST_HOST = 11
_TIMEOUT_S = 20.0


class NoNamespaces(SetupError, code="no_namespaces"):
    """This machine does not let this user make network namespaces."""


class Network:
    """What `open` made is there until `clear`."""

    def __init__(self, folder: Path) -> None:
        self._digest = hashlib.sha256(str(folder.resolve()).encode()).digest()
        self._prefix = f"cl{self._digest[:3].hex()}"  # an interface's name has at most 15 characters
        self._subnet: IPv4Network | None = None

    def open(self, nodes: int) -> None:
        """NoNamespaces, and nothing is left, where the machine does not allow it."""
        if os.geteuid() != 0:
            raise NoNamespaces("they need root")
        if shutil.which("ip") is None:
            raise NoNamespaces("they need the command `ip` (iproute2)")
        try:
            self.clear()
            self._subnet = self._free_subnet()
            _ip("link", "add", self._prefix, "type", "bridge")
            _ip("addr", "add", f"{self._subnet[1]}/24", "dev", self._prefix)
            _ip("link", "set", self._prefix, "up")
            for number in range(nodes):
                self._add(number)
        except BaseException:
            self.clear()
            raise

    def host(self, number: int) -> str:
        assert self._subnet is not None, "it was opened"
        return str(self._subnet[FIRST_HOST + number])

    def within(self, number: int) -> list[str]:
        """What stands before a command that is to run there."""
        return ["ip", "netns", "exec", self._namespace(number)]

    def clear(self) -> None:
        """End what runs in the namespaces, and remove them."""
        with suppress(NoNamespaces):
            for namespace in (each["name"] for each in _listed("netns", "list")):
                if namespace.startswith(f"{self._prefix}-"):
                    for pid in _ip("netns", "pids", namespace).split():
                        with suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                    _ip("netns", "del", namespace)
            for name in (each["ifname"] for each in _listed("link", "show")):
                if name.startswith(self._prefix):
                    with suppress(NoNamespaces):  # the kernel may just have removed it with its namespace
                        _ip("link", "del", name)

    def _namespace(self, number: int) -> str:
        return f"{self._prefix}-{number + 1}"

    def _add(self, number: int) -> None:
        namespace, outside, inside = self._namespace(number), f"{self._prefix}o{number + 1}", "eth0"
        _ip("netns", "add", namespace)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
        _ip("link", "set", outside, "master", self._prefix, "up")
        for words in (("addr", "add", f"{self.host(number)}/24", "dev", inside), ("link", "set", inside, "up")):
            _ip("-n", namespace, *words)
        _ip("-n", namespace, "link", "set", "lo", "up")

    def _free_subnet(self) -> IPv4Network:
        """A private range that no route of this machine touches."""
        routes = [each["dst"] for each in _listed("route", "show") if each["dst"] != "default"]
        taken = [ip_network(each, strict=False) for each in routes]
        x, y = self._digest[3], self._digest[4]
        for text in (f"10.{x}.{y}.0/24", f"172.{16 + x % 16}.{y}.0/24", f"192.168.{y}.0/24"):
            if not any(each.overlaps(IPv4Network(text)) for each in taken):
                return IPv4Network(text)
        raise NoNamespaces("no private range of addresses is free")


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        raise NoNamespaces(f"`ip {' '.join(words[:2])}` fails here") from None
    return done.stdout


def _listed(*words: str) -> Sequence[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_ip("-j", *words) or "[]")
    return found
