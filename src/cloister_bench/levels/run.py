"""One server with all levels: the sides in turn, round by round, then `mpc`, whose parties take cores and memory."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from cloister.errors import CloisterError, ServiceUnavailable
from cloister.levels import MPC, LevelName
from cloister.models.source import ModelFolder
from cloister_bench.levels.plan import SERVED, Part, Results, WordsLoad
from cloister_bench.load import RunReport, ask_once, kinds_of_errors, measure
from cloister_bench.messages import Answer, BrokenAnswer, Workload
from cloister_bench.servers import OwnServer
from cloister_bench.suite.measurement import Measurement, Point, Watcher, measure_in_turn

START_S, REQUEST_S = 120.0, 600.0
MPC_START_S = 900.0  # parties are dealt the weights, and compile
RETRY_S = 5.0


class Node(OwnServer):
    def measure(self, point: Point, seed: int) -> RunReport:
        """Warmed up: when the clock starts, a session has its vault and its substitutes. Raises ServiceUnavailable if
        not one of the users was answered."""
        load = WordsLoad(
            "completions",
            point.input_tokens,
            point.output_tokens,
            point.requests,
            seed=seed,
            timeout_s=REQUEST_S,
            protection=point.level,
            sessions=point.session,
        )
        run = measure(self.address, self.api_key, self.model, load, point.users)
        if not run.output_tokens:
            raise ServiceUnavailable(f"No request was answered ({point}): {kinds_of_errors([run])}.")
        return run

    def ask(self, level: LevelName, input_tokens: int, output_tokens: int, seed: int) -> Answer:
        """One request of token ids. Raises BrokenAnswer."""
        load = Workload("completions", input_tokens, output_tokens, seed=seed, protection=level)
        return ask_once(self.address, self.api_key, load.request(self.model, None, "ask"), REQUEST_S)


@contextmanager
def started(server: Node) -> Iterator[Node]:
    """Waits until the server has answered at each level once."""
    with server:
        try:
            server.wait(START_S)
        except ServiceUnavailable as failed:  # the log's folder is gone by the time a user reads this
            lines = [line for line in server.log.read_text(errors="replace").splitlines() if line.strip()]
            raise ServiceUnavailable(failed.message, hint=lines[-1].strip() if lines else "It said nothing.") from None
        for level in SERVED:
            server.measure(Point(level, 1, 16, 4), seed=-1)
        yield server


def why_no_mpc(folder: ModelFolder) -> str | None:
    try:
        from cloister_mpc.offer import require_memory, require_packages

        require_packages()
        require_memory(folder)
    except ImportError:
        return "not installed: `make mpc` installs it (Python 3.11)"
    except CloisterError as why:
        return f"{why.message} {why.hint}"
    return None


class Bench(Measurement[Results]):
    foreseen = (*Measurement.foreseen, BrokenAnswer)

    def __init__(
        self,
        results: Results,
        folder: ModelFolder,
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan, self._folder, self._arguments = results.plan, folder, arguments

    def run(self, parts: Collection[Part]) -> None:
        with (
            TemporaryDirectory(prefix="cloister-bench-") as logs,
            self._noting("server"),
            started(Node(self._folder.path, Path(logs), self._arguments)) as self._node,
        ):
            if "levels" in parts:
                self._in_turn()
            if "mpc" in parts:
                with self._noting("mpc"):
                    self._on_shares()

    def measure(self, point: Point, seed: int) -> RunReport:
        """One side; one that fails is noted, so that the others are measured. Earlier sides are saved first."""
        self._save()
        try:
            return self._node.measure(point, seed)
        except self.foreseen as failure:
            self._failed(str(point), failure)
            return RunReport(point.users)

    def _in_turn(self) -> None:
        plan, sides = self._plan, self._plan.sides()
        self._watcher.begin("levels", sum(side.rounds for side in sides))
        found, advance = self._results.measured, lambda side: self._watcher.advance(str(side))
        measure_in_turn(self, sides, found, seconds=plan.seconds, seed=plan.seed, on_end=advance)

    def _on_shares(self) -> None:
        """The first of two requests starts the parties and compiles; the second is what a user then waits for."""
        self._results.mpc["reason"] = why_no_mpc(self._folder)
        if self._results.mpc["reason"] is not None:
            return
        self._watcher.begin("mpc", 2)
        begun = monotonic()
        self._answer(0)
        start = monotonic() - begun
        self._watcher.advance("the parties have started")
        answer = self._answer(1)
        self._watcher.advance("1 user")
        first, later = answer.first_token - answer.sent, answer.last_token - answer.first_token
        each = later / max(1, answer.output_tokens - 1)
        seconds = {"first_request_s": start, "first_token_s": first, "seconds_per_token": each}
        self._results.mpc |= {name: round(value, 1) for name, value in seconds.items()}

    def _answer(self, number: int) -> Answer:
        """Asks again while the parties start."""
        plan, begun = self._plan, monotonic()
        while True:
            try:
                return self._node.ask(MPC, plan.input_tokens, plan.mpc_tokens, seed=plan.seed + number)
            except BrokenAnswer as broken:
                if broken.kind not in ("HTTP 503", "timeout") or monotonic() - begun > MPC_START_S:
                    raise
            sleep(RETRY_S)
