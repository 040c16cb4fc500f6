"""The tests of `cloister plan` run `cloister` as those of other commands do."""

from tests.cli.conftest import commands_are_made_once, run

__all__ = ["commands_are_made_once", "run"]
