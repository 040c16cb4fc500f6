"""The command-line tests of benchmarks run `cloister` as those of its own commands do."""

from tests.cli.conftest import commands_are_made_once, run

__all__ = ["commands_are_made_once", "run"]
