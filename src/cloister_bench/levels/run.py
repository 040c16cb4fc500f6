"""One server with all levels: the sides in turn, round by round, then `mpc`, whose parties take cores and memory."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, sleep

from cloister.errors import CloisterError, ServiceUnavailable
from cloister.levels import MPC
from cloister.models.source import ModelFolder
from cloister_bench.levels.plan import REQUEST_S, SERVED, Results, WordsLoad
from cloister_bench.load import RunReport, ask_once
from cloister_bench.messages import Answer, BrokenAnswer, Workload
from cloister_bench.peers import InTurn, Point, answered
from cloister_bench.servers import OwnServer
from cloister_bench.suite.measurement import Watcher

START_S = 120.0
MPC_START_S = 900.0  # parties are dealt the weights, and compile
RETRY_S = 5.0


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


class Bench(InTurn[Results]):
    def __init__(
        self, results: Results, folder: ModelFolder, watcher: Watcher, save: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(results, watcher, save)
        self._folder = folder

    def run(self) -> None:
        plan, logs = self._results.plan, Path(mkdtemp(prefix="cloister-bench-"))  # stays if the server does not start
        with self._noting("server"):
            with OwnServer(self._folder.path, logs) as self._server:
                self._server.wait(START_S)
                for level in SERVED:
                    self._measure(Point(level, 1, WordsLoad(16, 4, 1, protection=level)), -1)
                self._in_turn(plan.sides(), plan.rounds)
                with self._noting("mpc"):
                    self._on_shares()
            shutil.rmtree(logs)

    def _measure(self, point: Point, seed: int) -> RunReport:
        """Warmed up: when the clock starts, a session has its vault and its substitutes."""
        return answered(self._server, point, seed)

    def _on_shares(self) -> None:
        """The first of two requests starts the parties and compiles; the second is what a user then waits for."""
        mpc = self._results.mpc
        mpc["reason"] = why_no_mpc(self._folder)
        if mpc["reason"] is not None:
            return
        self._watcher.begin("mpc", 2)
        self._answer(0)
        self._watcher.advance("the parties have started")
        answer = self._answer(1)
        self._watcher.advance("1 user")
        later = (answer.last_token - answer.first_token) / max(1, answer.output_tokens - 1)
        mpc |= {"first_token_s": round(answer.first_token - answer.sent, 1), "seconds_per_token": round(later, 1)}

    def _answer(self, seed: int) -> Answer:
        """To one request of token ids. Asks again while the parties start."""
        plan, server, begun = self._results.plan, self._server, monotonic()
        load = Workload(plan.input_tokens, plan.mpc_tokens, seed=seed, protection=MPC)
        while True:
            try:
                return ask_once(server.address, server.api_key, load.request(server.model, None), REQUEST_S)
            except BrokenAnswer as broken:
                if broken.kind not in ("HTTP 503", "timeout") or monotonic() - begun > MPC_START_S:
                    raise ServiceUnavailable(f"A request was not answered ({broken.kind}).") from None
            sleep(RETRY_S)
