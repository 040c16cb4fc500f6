"""A cloud of several nodes on one machine: an issuer, nodes that take its tokens, where asked a relay, and a proxy.

Each node is in a network namespace where this machine allows that, else on a loopback port. All of it is to try
a cloud: one operator runs all the parts, and sees what they see together.
"""

import os
import random
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from cloister.attest.policy import load_policy
from cloister.client.verification import VerifiedNode
from cloister.cores import usable_cores
from cloister.errors import SetupError, VerificationFailed
from cloister.files import held, make_folder, needed
from cloister.keys import add_line, key_line, new_key
from cloister.local_cloud.network import Network, NoNamespaces
from cloister.local_cloud.nodes import LocalNode, LocalNodes
from cloister.local_cloud.parts import Parts, command
from cloister.local_cloud.view import View

_STEP_S = 0.1
_PER_DAY = 100_000  # the one user is at this machine


@dataclass(frozen=True)
class Plan:
    """What is started, and where it listens; port 0: any free one."""

    folder: Path
    nodes: int
    port: int
    proxy_port: int
    issuer_port: int
    relay_port: int | None = None
    serving: tuple[str, ...] = ()
    """More words for each node's `cloister serve`."""


@dataclass(frozen=True)
class Place:
    name: str
    host: str
    port: int
    within: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


def run_cloud(plan: Plan, stack: ExitStack, view: View) -> None:
    """Until a part other than a node ends, or this process is interrupted. SIGHUP starts the nodes again one by one."""
    with needed(f"The cloud cannot be kept in {plan.folder}"):
        make_folder(plan.folder, mode=0o700)
    lock = held(plan.folder / ".lock", f"Another `cloister up` uses {plan.folder}.", "Give each one with --folder.")
    stack.callback(os.close, lock)
    places = _places(plan, stack, view)
    state = {"CLOISTER_STATE": str(plan.folder / "state"), "CLOISTER_DATA": str(plan.folder / "client")}
    os.environ |= state  # nodes that are verified here are pinned in the folder, and forgotten with it
    parts = Parts(stack, view.say, state)
    words = ["issuer", "--port", str(plan.issuer_port), "--per-day", str(_PER_DAY)]
    words += ["--folder", str(plan.folder / "issuer")]
    issuer = parts.start("issuer", words, r"Keys +(http://[^/]+)/")
    listed = plan.folder / "cloud.json"
    named = [word for place in places for word in ("--node", f"{place.name}={place.url}")]
    parts.run(["cloud", "make", "--issuer", issuer, *named, "--out", str(listed)])
    nodes = _nodes(plan, places, parts, listed)
    stack.callback(nodes.end)
    before = signal.signal(signal.SIGHUP, lambda *_: nodes.roll())
    stack.callback(signal.signal, signal.SIGHUP, before)
    nodes.start()
    proxy = ["--port", str(plan.proxy_port), "--allow-software-tee", "--issuer", issuer, "--cloud", str(listed)]
    if plan.relay_port is not None:
        to = [word for place in places for word in ("--to", place.url)]
        relay = parts.start("relay", ["relay", *to, "--port", str(plan.relay_port)], r"Relay +(http://\S+)")
        proxy += ["--relay", relay]
    url = parts.start("proxy", ["proxy", places[0].url, *proxy], r"API +(http://\S+)/v1")
    while not nodes.are_ready():
        _tick(parts, nodes, view)
    view.say(f"\nReady: any OpenAI client at {url}/v1, with any API key. What nodes say is in {plan.folder / 'logs'}.")
    view.say(f"`kill -HUP {os.getpid()}` starts the nodes again one by one.")
    while True:
        nodes.step()
        _tick(parts, nodes, view)


def _tick(parts: Parts, nodes: LocalNodes, view: View) -> None:
    parts.check()
    view.show(nodes.nodes)
    sleep(_STEP_S)


def _places(plan: Plan, stack: ExitStack, view: View) -> list[Place]:
    names = [f"node-{number + 1}" for number in range(plan.nodes)]
    network = Network(plan.folder)
    try:
        network.open(plan.nodes)
    except NoNamespaces as reason:
        places = [Place(name, "127.0.0.1", port) for name, port in zip(names, _ports(plan), strict=True)]
        shown = ", ".join(str(place.port) for place in places)
        view.say(f"No network namespaces: {reason}. All nodes are on 127.0.0.1, ports {shown}.")
        return places
    stack.callback(network.clear)
    port = plan.port or 8000
    places = [Place(name, network.host(at), port, (*network.within(at),)) for at, name in enumerate(names)]
    view.say(f"Each node is in a network namespace: {', '.join(place.host for place in places)}.")
    return places


def _ports(plan: Plan) -> list[int]:
    """Free ones from the one asked for on; port 0: below those of outgoing connections, which could take one."""
    first, found = plan.port or random.randrange(10_000, 30_000), list[int]()
    for port in range(first, min(first + 1000, 65_536)):
        if port not in (plan.proxy_port, plan.relay_port, plan.issuer_port) and len(found) < plan.nodes:
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                found.append(port)
    if len(found) < plan.nodes:
        raise SetupError(f"No {plan.nodes} ports from {first} on are free.", hint="Choose another --port.")
    return found


def _nodes(plan: Plan, places: list[Place], parts: Parts, listed: Path) -> LocalNodes:
    keys, key, logs = plan.folder / "keys.toml", new_key(), plan.folder / "logs"
    with needed(f"{plan.folder} cannot be changed"):
        keys.unlink(missing_ok=True)
        make_folder(logs, mode=0o700)
    add_line(keys, key_line(key, "up", operator=True))
    threads = ("--threads", str(max(1, usable_cores() // plan.nodes)))
    made = []
    for place in places:
        words = ["serve", "--host", place.host, "--port", str(place.port), "--keys", str(keys)]
        words += () if "CLOISTER_SERVE_THREADS" in os.environ else threads
        words += ["--cloud", str(listed), "--node-name", place.name, *plan.serving]
        environment = {**parts.environment, "CLOISTER_DATA": str(plan.folder / place.name)}
        log = logs / f"{place.name}.log"
        log.unlink(missing_ok=True)
        made.append(LocalNode(place.name, place.url, [*place.within, *command(words)], environment, log, key))
    return LocalNodes(made, verifier_of(listed))


def verifier_of(listed: Path) -> Callable[[str], None]:
    from cloister.access.cloud import load_cloud

    digest, policy = load_cloud(listed).digest.hex(), load_policy(None, allow_software_tee=True)

    def verify(url: str) -> None:
        """VerificationFailed unless its evidence is good, and it follows this cloud's list."""
        if VerifiedNode(url, policy).verification.verdict.claims.get("cloud") != digest:
            raise VerificationFailed(f"{url} follows another list of nodes and token keys.", checks=("cloud list",))

    return verify
