"""Run the checks and the tests, a few groups at a time: `make test`, `make test-all` and `make check`.

A group is a plain pytest process over one or more folders of tests/. Sandboxes are forked from a process with a lone
thread and SPU brings threads: tests on shares therefore have groups of their own, and pytest-xdist cannot be used.
Two groups at once keep two cores busy, but for when they wait, which is a third of the time. Two more have what they
leave: first those whose tests wait for nobody (PATIENT), at a low priority; once there are none left, the others. Each
group writes to a log of its own in artifacts/tests; the whole log of a group that failed is shown. Where a few tests
failed, they run once more when all groups are done: a machine with four groups at once can miss a moment. A test that
passes alone is named as unstable.

Arguments other than --release and --check go to one plain pytest and then to one on shares: run_tests.py -k scheduler
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
LOGS = ROOT / "artifacts" / "tests"
AT_ONCE = 2
BESIDE = 2
PYTHON = sys.executable
NONE_SELECTED = 5
"""pytest's exit status where no test was selected."""

SECONDS = {
    ("serving", False): 250,
    ("cloister_mpc", True): 200,
    ("redteam", False): 190,
    ("controller", False): 150,
    ("client", False): 100,
    ("gateway", False): 85,
    ("models", False): 80,
    ("obfuscation", False): 70,
    ("cloister_bench", False): 80,
    ("compute", False): 50,
    ("chaos", False): 75,
    ("cli", False): 65,
    ("engine", False): 45,
    ("vault_host", False): 60,
    ("vault", False): 40,
    ("forkserver", False): 35,
    ("process", False): 45,
    ("prompts", False): 25,
    ("link", False): 30,
    ("browser", False): 40,
    ("access", False): 30,
    ("transparency", False): 15,
    ("serving", True): 50,
    ("cloister_bench", True): 10,
}
"""About how long the tests of a folder, on shares or not, take on two quiet cores; others take `FEW_SECONDS`."""

RELEASE_SECONDS = {
    ("controller", False): 800,
    ("vault_host", False): 1950,
    ("chaos/test_cloud.py", False): 1200,
    ("serving/test_levels.py", False): 2400,
    ("serving/test_benchmarks.py", False): 1500,
    ("serving/test_invariance.py", False): 900,
}
"""The same for a release, where it is much longer. A file named here is a group of its own then."""

FEW_SECONDS = 10
WORTH_A_GROUP = 150
"""Folders that take less share groups: to import torch and transformers takes ten seconds each time. All on shares are
one, for SPU and jax take as long again; and what is left and takes less joins the group before."""

GUESTS = {"browser": "serving"}
"""A folder and the one whose group it joins: both ask the same nodes, which start once a group."""

WITHOUT_PROCESSES = {
    *("attest", "backend", "channel", "detection", "engine", "messages", "prefix", "prompts"),
    *("sealed_weights", "service", "transparency"),
}
"""What `make check` runs: folders whose tests start next to no processes."""

PATIENT = {*WITHOUT_PROCESSES, "compute", "image", "models", "obfuscation"}
"""Folders whose tests do not mind how slowly they run."""
MOST_OF_A_NAME = 120  # characters of a group's name that its log has: file systems allow 255 bytes
MOST_UNSTABLE = 3  # tests of a group that may fail beside others and pass alone
TESTS_FAILED = 1  # pytest's exit status
NICENESS = 5
"""Of what runs beside two others: it has an eighth of a core at least, or the soonest of its timeouts would come."""


@dataclass(frozen=True)
class Folder:
    """The tests on shares of a folder of tests/, or all its others; or those of one file, where it is so long."""

    name: str
    on_shares: bool = False
    release: bool = False

    @property
    def seconds(self) -> int:
        longer = RELEASE_SECONDS.get((self.name, self.on_shares)) if self.release else None
        return longer or SECONDS.get((self.name, self.on_shares), 3 if self.name.endswith(".py") else FEW_SECONDS)

    @property
    def patient(self) -> bool:
        return not self.on_shares and self.name in PATIENT


@dataclass(frozen=True)
class Group:
    """Commands that run one after the other and write to one log."""

    name: str
    seconds: int
    commands: tuple[tuple[str, ...], ...]
    patient: bool = False

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "-").replace("/", "-")[:MOST_OF_A_NAME]


@dataclass(frozen=True)
class Result:
    group: Group
    passed: bool
    seconds: float
    processor_seconds: float
    output: str
    failed_tests: tuple[str, ...] = ()
    """Where nothing else failed, and they are few."""


def main(arguments: list[str]) -> int:
    # A shell ignores it in what it starts in the background, and so would all servers that tests end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folders = find_folders(release=arguments == ["--release"])
    match arguments:
        case [] | ["--release"]:
            groups = [lint(), *group(folders, *arguments)]
        case ["--check"]:
            groups = [lint(), *group(folder for folder in folders if folder.name in WITHOUT_PROCESSES)]
        case _:
            return run_plainly(arguments)
    begun = time.monotonic()
    failed = [result for result in run(groups, LOGS, show) if not result.passed]
    failed = [result.group.name for result in failed if not passes_alone(result, LOGS, show)]
    verdict = f"failed: {'; '.join(failed)}" if failed else "all passed"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(groups)} groups in {time.monotonic() - begun:.0f} s "
        f"({used.ru_utime + used.ru_stime:.0f} s of processor time), {verdict}"
    )
    return 1 if failed else 0


def run_plainly(arguments: Sequence[str]) -> int:
    """What a developer asks for by name: the tests, then those on shares. One of the two may have none."""
    commands = [(PYTHON, "-m", "pytest", *more, *arguments) for more in ((), ("--on-shares",))]
    statuses = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands]
    failures = [status for status in statuses if status not in (0, NONE_SELECTED)]
    return failures[0] if failures else min(statuses)


def find_folders(release: bool = False) -> list[Folder]:
    """Every folder of tests/ that holds tests, and for a release the files that are as long as a folder."""
    sys.path.insert(0, str(ROOT))
    from tests.conftest import is_on_shares

    found = {(path.relative_to(TESTS).parts[0], is_on_shares(path)) for path in TESTS.rglob("test_*.py")}
    if release:
        found |= {each for each in RELEASE_SECONDS if "/" in each[0]}
    return [Folder(*each, release) for each in sorted(found)]


def lint() -> Group:
    tools = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
    return Group("lint", 90, tuple((PYTHON, "-m", *tool) for tool in tools), patient=True)


def group(folders: Iterable[Folder], *options: str) -> list[Group]:
    """The longest first: one that began last would keep a core waiting. Those on shares are with no others, and so are
    the patient ones."""
    gathered: defaultdict[tuple[bool, bool], list[list[Folder]]] = defaultdict(list)
    folders = sorted(folders, key=lambda folder: -folder.seconds)
    hosts = {folder.name for folder in folders if not folder.on_shares}
    guests = {GUESTS[folder.name]: folder for folder in folders if GUESTS.get(folder.name) in hosts}
    for folder in folders:
        if folder in guests.values():
            continue
        alike = gathered[folder.on_shares, folder.patient]
        if not alike or (_seconds(alike[-1]) >= WORTH_A_GROUP and not folder.on_shares):
            alike.append([])
        alike[-1].append(folder)
        if folder.name in guests and not folder.on_shares:
            alike[-1].append(guests[folder.name])
    for alike in gathered.values():
        if len(alike) > 1 and _seconds(alike[-1]) < WORTH_A_GROUP:
            left = alike.pop()
            alike[-1] += left
    groups = [pytest_of(together, options) for alike in gathered.values() for together in alike]
    return sorted(groups, key=lambda group: -group.seconds)


def _seconds(folders: Iterable[Folder]) -> int:
    return sum(folder.seconds for folder in folders)


def pytest_of(folders: Sequence[Folder], options: Sequence[str]) -> Group:
    on_shares = folders[0].on_shares
    name = " ".join(folder.name for folder in folders) + " on shares" * on_shares
    paths = [f"tests/{folder.name}" for folder in folders]
    command = (PYTHON, "-m", "pytest", "-q", "--durations=10", "--durations-min=3")
    if "gateway" not in {folder.name for folder in folders}:
        command = (*command, "-p", "no:schemathesis")  # a plugin that takes a second to load, for one folder's tests
    alone = [f"tests/{name}" for name, _ in RELEASE_SECONDS if "/" in name] if folders[0].release else []
    elsewhere = [f"--ignore={path}" for path in alone if path not in paths]
    command = (*command, *["--on-shares"] * on_shares, *options, *elsewhere, *paths)
    return Group(name, _seconds(folders), (command,), folders[0].patient)


def run(groups: Sequence[Group], logs: Path, tell: Callable[[Result], None]) -> list[Result]:
    """Each group's result, told as soon as it is there. Lanes beside have the patient ones first, at a low priority."""
    logs.mkdir(parents=True, exist_ok=True)
    pressing, patient = (deque(group for group in groups if group.patient is each) for each in (False, True))
    results = []

    def work(patient_niceness: int, *queues: deque[Group]) -> None:
        while (group := _next(queues)) is not None:
            results.append(run_group(group, logs, patient_niceness if group.patient else 0))
            tell(results[-1])

    with ThreadPoolExecutor(AT_ONCE + BESIDE) as workers:
        try:
            lanes = [workers.submit(work, 0, pressing, patient) for _ in range(AT_ONCE)]
            lanes += [workers.submit(work, NICENESS, patient, pressing) for _ in range(BESIDE)]
            for lane in lanes:
                lane.result()
        except KeyboardInterrupt:
            pressing.clear()  # the terminal has told those at work
            patient.clear()
            raise
    return results


def _next(queues: Iterable[deque[Group]]) -> Group | None:
    for queue in queues:
        with suppress(IndexError):
            return queue.popleft()
    return None


def run_group(group: Group, logs: Path, niceness: int = 0) -> Result:
    log, cache = logs / f"{group.file_name}.log", logs / f"{group.file_name}.cache"
    shutil.rmtree(cache, ignore_errors=True)
    begun = time.monotonic()
    with log.open("w") as output:
        where = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        where["env"] = environment()
        nice = ("nice", "-n", str(niceness)) if niceness else ()
        ended = [_run((*nice, *_with_cache(command, cache)), **where) for command in group.commands]
    statuses = {status for status, _ in ended}
    used = sum(seconds for _, seconds in ended)
    failed = _few_failed(cache) if statuses == {TESTS_FAILED} else ()
    output_text = log.read_text(errors="replace")
    return Result(group, statuses <= {0, NONE_SELECTED}, time.monotonic() - begun, used, output_text, failed)


def _with_cache(command: tuple[str, ...], cache: Path) -> tuple[str, ...]:
    """One of the group's own: two at once would write over each other's."""
    return (*command, "-o", f"cache_dir={cache}") if "pytest" in command else command


def _few_failed(cache: Path) -> tuple[str, ...]:
    try:
        failed = tuple(json.loads((cache / "v" / "cache" / "lastfailed").read_text()))
    except (OSError, ValueError):
        return ()
    return failed if len(failed) <= MOST_UNSTABLE else ()


def passes_alone(result: Result, logs: Path, tell: Callable[[Result], None]) -> bool:
    """The tests that failed, once more beside nothing: each must pass."""
    tests = result.failed_tests
    if not tests:
        return False
    commands = tuple((*command, *tests) for command in map(_without_paths, result.group.commands))
    again = run_group(Group(f"{result.group.name}, again", 0, commands), logs)
    tell(again)
    if passed := again.passed and f"\n{len(tests)} passed" in again.output:
        print(f"UNSTABLE: {', '.join(tests)} failed beside other tests and passed alone.", flush=True)
    return passed


def _without_paths(command: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for part in command if not part.startswith("tests/"))


def _run(command: Sequence[str], **where: Any) -> tuple[int, float]:
    """Its exit status, and the processor time that it and all it waited for took."""
    process = subprocess.Popen(command, **where)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def environment() -> dict[str, str]:
    """The other core has another group. Byte code is kept for all groups and what they start: without it each compiles
    all that it imports, ten seconds for torch, transformers and pytest."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": "1"}


def show(result: Result) -> None:
    """A line for what passed, everything it said for what did not."""
    lines = result.output.strip().splitlines() or ["it said nothing"]
    if not result.passed:
        print(result.output)
    mark = "passed" if result.passed else "FAILED"
    times = f"{result.seconds:4.0f} s ({result.processor_seconds:4.0f} s of processor time)"
    print(f"{mark}  {times}  {result.group.name}: {lines[-1].strip('= ')}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
