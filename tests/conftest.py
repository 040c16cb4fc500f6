"""What every test may ask for: the shared folder beside the checkout, and the default model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.served import running_server

if TYPE_CHECKING:
    from cloister.models.source import ModelFolder


@pytest.fixture(scope="session", autouse=True)
def own_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What clients under test remember of nodes is not the user's memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLOISTER_STATE", str(tmp_path_factory.mktemp("state")))
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
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`cloister serve` with the default model, one for all tests that only talk to it; its base URL."""
    with running_server(tmp_path_factory.mktemp("served") / "log") as server:
        yield server.url()
