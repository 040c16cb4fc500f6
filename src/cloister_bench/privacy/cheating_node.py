"""`python -m cloister_bench.privacy.cheating_node serve …`: as `cloister serve`, but the service cheats.
The product has no switch for this: in the controller that this module becomes, the template of the computing processes
loads a module more."""

import sys
from typing import Any

HERE = "cloister_bench.privacy.cheating_node"
SERVICE = "cloister_bench.privacy.cheating_service"


def _serve() -> None:
    from cloister.cli import app
    from cloister.process import entry

    honest = entry.become

    def become(_: str, *start: Any) -> None:
        honest(HERE, *start)

    vars(entry)["become"] = become
    app(prog_name="cloister")


def _control() -> None:
    from cloister.controller import __main__ as controller
    from cloister.process.entry import run_server

    vars(controller)["COMPUTING"] = (*vars(controller)["COMPUTING"], SERVICE)
    run_server("controller", controller._serve)


if __name__ == "__main__":
    _serve() if sys.argv[1] == "serve" else _control()
