"""The nodes of a cloud on one machine: each is verified, watched, and started again when it ends.

`roll` starts them again one by one: the next one drains once the one before is verified and ready.
"""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from time import monotonic

import httpx2
import typer

from cloister.addresses import HttpAddress
from cloister.client.verification import tls_to
from cloister.errors import ServiceUnavailable, SetupError
from cloister.local_cloud.parts import begin, end

LOOK_S = 1.0
_TIMEOUT_S = 2.0
_MOST_WAIT_S = 30.0
_ANSWERS = r'route="/v1/(?:sealed|completions|chat/completions|responses|embeddings)",status="2xx"'
_SUMS = {"running": r"^cloister_running (\S+)$", "answered": rf"^cloister_requests_total\{{{_ANSWERS}\}} (\S+)$"}
Verify = Callable[[str], None]


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    AWAY = "away"  # it runs, and does not serve
    DRAINING = "draining"
    DOWN = "down"


class LocalNode:
    """One `cloister serve`. Its output goes to the file `log`."""

    def __init__(
        self, name: str, url: str, command: Sequence[str], environment: Mapping[str, str], log: Path, key: str
    ) -> None:
        self.name, self.url, self.log = name, url, log
        self.state, self.restarts = State.DOWN, -1
        self.running = self.answered = 0
        self._command, self._environment, self._key = command, environment, key
        self._process: subprocess.Popen[str] | None = None
        self._before = 0  # answered by processes that are gone
        self._wait_s, self._start_at = 0.0, 0.0

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = begin(self._command, self._environment, output)
        self.state, self.restarts = State.STARTING, self.restarts + 1
        self._before, self.running = self.answered, 0

    def keep(self) -> None:
        """Start it again once it has ended; one that was never ready after its start waits before."""
        if not self.ended:
            return
        if self.state is not State.DOWN:
            self._wait_s = min(2 * self._wait_s + 1, _MOST_WAIT_S) if self.state is State.STARTING else 0.0
            self.state, self._start_at = State.DOWN, monotonic() + self._wait_s
        if monotonic() >= self._start_at:
            self.start()

    def drain(self) -> None:
        assert self._process is not None
        self.state = State.DRAINING
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        if self._process is not None and not self.ended:
            self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        if self._process is not None:
            end(self._process, asked=True)
        self.state = State.DOWN

    def look(self, verify: Verify) -> None:
        """Ask it how it is. It counts as ready once its evidence was verified after its start."""
        if self.ended or self.state is State.DRAINING:
            return
        try:
            tls = tls_to(HttpAddress.parse(self.url))
            with httpx2.Client(base_url=self.url, timeout=_TIMEOUT_S, trust_env=False, verify=tls) as http:
                serves = http.get("/ready").status_code == 200
                if serves and self.state is State.STARTING:
                    verify(self.url)
                if self.state is not State.STARTING or serves:
                    self.state = State.READY if serves else State.AWAY
                if serves:
                    self._count(http.get("/metrics", headers={"Authorization": f"Bearer {self._key}"}).text)
        except (httpx2.TimeoutException, ServiceUnavailable):
            return  # it is busy
        except httpx2.RequestError:
            self.state = State.AWAY if self.state is State.READY else self.state

    def _count(self, metrics: str) -> None:
        """A node with keys shows its totals some seconds late, and coarsely."""
        found = {name: sum(map(float, re.findall(text, metrics, re.M))) for name, text in _SUMS.items()}
        if all(value == value for value in found.values()):  # not NaN: the service is there
            self.running = int(found["running"])
            self.answered = self._before + int(found["answered"])


class LocalNodes:
    """Call `step` again and again, from one thread."""

    def __init__(self, nodes: Sequence[LocalNode], verify: Verify) -> None:
        self.nodes, self._verify = nodes, verify
        self._rolling: Iterator[LocalNode | None] | None = None
        self._replaced: LocalNode | None = None
        self._look_at = 0.0

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def are_ready(self) -> bool:
        """For the first time; a node that ended instead is an error."""
        self._look()
        for node in self.nodes:
            if node.ended:
                typer.echo("\n".join(node.log.read_text(errors="replace").splitlines()[-12:]), err=True)
                raise SetupError(f"{node.name} ended before it was ready.", hint="Its last words are above.")
        return all(node.state is State.READY for node in self.nodes)

    def step(self) -> None:
        for node in self.nodes:
            if node is not self._replaced:
                node.keep()
        if self._rolling is not None:
            try:
                self._replaced = next(self._rolling)
            except StopIteration:
                self._rolling = self._replaced = None
        self._look()

    def roll(self) -> None:
        """Begin to start all again, one by one; one that is under way goes on."""
        if self._rolling is None:
            self._rolling = self._one_by_one()

    def end(self) -> None:
        for node in self.nodes:
            node.interrupt()
        for node in self.nodes:
            node.end()

    def _look(self) -> None:
        if monotonic() >= self._look_at:
            for node in self.nodes:
                node.look(self._verify)
            self._look_at = monotonic() + LOOK_S

    def _one_by_one(self) -> Iterator[LocalNode | None]:
        """The node that `step` is not to start, after each step."""
        for node in self.nodes:
            while any(each.state is not State.READY for each in self.nodes):
                yield None
            node.drain()
            while not node.ended:
                yield node
            node.start()
            while node.state is not State.READY and not node.ended:
                yield node
