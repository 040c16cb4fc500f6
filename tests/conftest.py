"""What every test may ask for, and which tests run: those on shares apart, those for a release only when asked for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from cloister.process import interpreter
from tests.examples import ORDINARY
from tests.served import running_server

if TYPE_CHECKING:
    from cloister.models.source import ModelFolder

HERE = Path(__file__).parent
_LOAD_SPU = ("cloister_mpc", "cloister_bench/mpc", "cloister_bench/cli/test_mpc.py", "serving/test_mpc.py")
ON_SHARES = tuple(HERE / path for path in _LOAD_SPU)
"""Tests that load SPU: from then on every fork of their process has threads, and a sandbox wants a lone one."""

# No deadlines: a test must not fail because the machine is busy.
settings.register_profile("test", deadline=None, max_examples=ORDINARY)
settings.register_profile("release", deadline=None, max_examples=24 * ORDINARY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-shares", action="store_true", help="run the tests that load SPU, and no others")
    parser.addoption("--release", action="store_true", help="also run what only a release needs; draw more examples")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("release" if config.getoption("--release") else "test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--release"):
        later = [item for item in items if item.get_closest_marker("release")]
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest` runs all tests but those on shares; `pytest --on-shares` runs those; who names one of them gets it."""
    if config.getoption("--on-shares"):
        if find_spec("spu") is None:
            return True
        return None if collection_path.is_dir() or is_on_shares(collection_path) else True
    named = any(is_on_shares(Path(argument.partition("::")[0]).resolve()) for argument in config.args)
    return True if is_on_shares(collection_path) and not named else None


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--on-shares") and find_spec("spu") is None:
        return "SPU is not installed (the distribution cloister-mpc needs Python 3.11): nothing is tested on shares"
    return None


def is_on_shares(path: Path) -> bool:
    return any(path == part or part in path.parents for part in ON_SHARES)


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """Where the tests run as a shell's background job, which ignores SIGINT, as would the processes they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def own_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What clients under test remember of nodes is not the user's memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLOISTER_STATE", str(tmp_path_factory.mktemp("state")))
        patched.setenv("CLOISTER_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of seeds, vectors and data: $CLOISTER_SHARED, or `shared` beside the checkout."""
    folder = Path(os.environ.get("CLOISTER_SHARED") or Path(__file__).parents[2] / "shared")
    if not folder.is_dir():
        pytest.skip("the shared folder is not here; set CLOISTER_SHARED to where it is")
    return folder


@pytest.fixture(scope="session")
def smollm_folder() -> ModelFolder:
    """The default model, converted on first use."""
    from cloister.models.source import find_model

    return find_model(None)


@pytest.fixture(scope="session")
def short_folder() -> ModelFolder:
    """A narrow model with the default's tokenizer and name."""
    from tests.short_model import short_model

    return short_model()


@pytest.fixture(scope="session", autouse=True)
def processes_of_tests_find_their_code() -> Iterator[None]:
    """A node's processes look for no code in the working folder; those that a test has it start lie there."""
    plain = interpreter.python

    def python(module: str, *arguments: str) -> list[str]:
        ours = module.startswith("tests.")
        return [sys.executable, "-m", module, *arguments] if ours else plain(module, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "python", python)
        yield


@pytest.fixture(scope="session")
def short_server(tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder) -> Iterator[str]:
    """`cloister serve` with that, one for all tests that only talk to it and do not read; its base URL."""
    with running_server(tmp_path_factory.mktemp("served") / "log", "--model", str(short_folder.path)) as server:
        yield server.url()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`cloister serve` with the default model, one for all tests that read what it says; its base URL."""
    with running_server(tmp_path_factory.mktemp("served") / "log") as server:
        yield server.url()
