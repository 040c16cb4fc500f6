"""The node's half: where vLLM's environment is, what it serves, and what evidence says. It does not import vLLM."""

import os
import sys
from pathlib import Path

from cloister.config import Settings
from cloister.controller.external_engine import ExternalEngine
from cloister.errors import SetupError
from cloister.levels import LevelName
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister_vllm import VERSION
from cloister_vllm.arguments import arguments_of, unserved


def environment_of_vllm() -> Path:
    """Beside ours: `.venv` has `.venv-vllm`."""
    return Path(sys.prefix + "-vllm")


class Vllm(ExternalEngine):
    levels: tuple[LevelName, ...] = ("open", "shared", "partitioned", "isolated")

    def require(self, settings: Settings, folder: ModelFolder | None) -> None:
        python = self._python()
        if not os.access(python, os.X_OK):
            raise SetupError(f"There is no vLLM at {python}.", hint="`make vllm` installs it.")

    def command(self) -> list[str]:
        return [str(self._python()), "-P", "-m", "cloister_vllm.process"]

    def unserved(self, params: SamplingParams) -> str | None:
        return unserved(params)

    def describe(self, settings: Settings) -> str:
        given = arguments_of(settings.engine)
        return f"vLLM {VERSION} ({', '.join(f'{name}={given[name]}' for name in sorted(given))})"

    def _python(self) -> Path:
        return environment_of_vllm() / "bin" / "python"
