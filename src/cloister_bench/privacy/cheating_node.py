"""`python -m cloister_bench.privacy.cheating_node serve …`: as `cloister serve`, but the service cheats. The product
has no switch for this: in the controller that this module becomes, a template loads a module more."""

import sys

HERE = "cloister_bench.privacy.cheating_node"
SERVICE = "cloister_bench.privacy.cheating_service"


def main() -> None:
    from cloister.process import entry

    if sys.argv[1] == "serve":
        from cloister.cli import app

        honest = entry.become
        vars(entry)["become"] = lambda _, *start: honest(HERE, *start)
        app(prog_name="cloister")
    else:
        from cloister.controller import __main__ as controller
        from cloister.controller import deviations

        vars(deviations)["MOST_RESTARTS"] = 1 << 20  # then all would be verified: here one attack follows another
        vars(controller)["COMPUTING"] = (*vars(controller)["COMPUTING"], SERVICE)
        entry.run_server("controller", controller._serve)


if __name__ == "__main__":
    main()
