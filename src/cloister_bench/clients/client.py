"""The clients: their packages, the program that tries their features, and the environment it runs in."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import SetupError
from cloister.files import needed

PROGRAMS = Path(__file__).parent / "programs"
FEATURES = ("chat", "stream", "history", "several", "schema", "call", "result", "responses", "embeddings", "readme")
ABSENT = "absent"  # a program's word for a feature that its client does not have
_INSTALL_S, _TRY_S = 900, 600


@dataclass(frozen=True, slots=True)
class Client:
    """`packages` are pinned; one without any runs in this environment. `proxied`: through `cloister proxy`."""

    name: str
    program: str
    packages: tuple[str, ...] = ()
    proxied: bool = False

    @property
    def is_ours(self) -> bool:
        return self.name == "cloister.Client"

    def install(self, folder: Path) -> list[str]:
        """The command that runs the program. What is there already is kept."""
        program = str(PROGRAMS / self.program)
        if not self.packages:
            return [sys.executable, program]
        folder = folder / self.name.replace(" ", "-")
        if self.program.endswith(".mjs"):
            folder.mkdir(parents=True, exist_ok=True)
            _run("npm", "install", "--silent", "--no-audit", "--prefix", str(folder), *self.packages)
            copied = folder / self.program  # Node looks for packages beside the program
            copied.write_bytes((PROGRAMS / self.program).read_bytes())
            return ["node", str(copied)]
        python = folder / "bin" / "python"
        if not python.exists():
            _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", *self.packages)
        return [str(python), program]


CLIENTS = (
    Client("openai Python", "openai_python.py"),
    Client("cloister.Client", "openai_python.py"),
    Client("cloister proxy", "openai_python.py", proxied=True),
    Client("openai Node", "openai_node.mjs", ("openai@7.55.0",)),
    Client("litellm", "litellm_client.py", ("litellm==1.90.0",)),
    Client("langchain", "langchain_client.py", ("langchain-openai==1.7.0",)),
    Client(
        "llama-index",
        "llama_index_client.py",
        ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    ),
    Client("pydantic-ai", "pydantic_ai_client.py", ("pydantic-ai-slim[openai]==2.68.0",)),
    Client("instructor", "instructor_client.py", ("instructor==1.17.0",)),
    Client("openai-agents", "openai_agents_client.py", ("openai-agents==0.24.0",)),
)


def attempt(command: list[str], features: tuple[str, ...], server: dict[str, str]) -> dict[str, str]:
    """What each came to: `works`, or why not. A feature that the client does not have is left out. A program tries them
    all in one process, one after the other: to load some clients takes longer than to try them."""
    came_to: dict[str, str] = {}
    while left := [feature for feature in features if feature not in came_to]:
        ended, said = _run_program([*command, *left], server)
        for line in said:
            with suppress(ValueError, KeyError, TypeError):  # what else a client prints
                found = json.loads(line)
                came_to[found["feature"]] = str(found["came_to"])
        if under_way := [feature for feature in left if feature not in came_to]:
            came_to[under_way[0]] = ended
    return {feature: what for feature, what in came_to.items() if what != ABSENT}


def _run_program(command: list[str], server: dict[str, str]) -> tuple[str, list[str]]:
    """How it ended, and its lines."""
    try:
        done = subprocess.run(
            command, env=os.environ | server, capture_output=True, text=True, timeout=_TRY_S, cwd=PROGRAMS
        )
    except subprocess.TimeoutExpired as late:
        return f"no end in {_TRY_S} s", _text(late.stdout).splitlines()
    return ((done.stderr.strip() or "failed").splitlines()[-1])[:300], done.stdout.splitlines()


def _text(given: bytes | str | None) -> str:
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else given or ""


def _run(*command: str) -> None:
    with needed(f"{command[0]} cannot be run", command[0]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SetupError(f"{' '.join(command[-2:])} failed: {''.join(last)[:300]}", hint="Are packages reachable?")
