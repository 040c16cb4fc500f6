from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.models.source import ModelFolder
from tests.redteam import unwiped
from tests.served import Server, running_server

IDLE_S = 8
SPARE_VAULTS = 1
ARGUMENTS = (
    "--detector",
    *("--kv-cache-mib", "64", "--vault-kv-mib", "32", "--spare-vaults", str(SPARE_VAULTS)),
    # Long enough for a step to outlast the stop of all processes that a search takes.
    *("--link-deadline-ms", "300000", "--request-timeout", "600", "--session-idle", str(IDLE_S)),
)


@pytest.fixture(scope="session")
def searched(
    tmp_path_factory: pytest.TempPathFactory, short_folder: ModelFolder
) -> Iterator[tuple[Server, Path, ModelFolder]]:
    """A server whose memory is searched, the folder for its temporary files, and its model.

    Its freed tensors stay as they are: what tensors held must be gone by our own doing, whatever torch allocates with.
    """
    temporary = tmp_path_factory.mktemp("temporary")
    model = ("--model", str(short_folder.path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        for name, value in unwiped.environment(tmp_path_factory.mktemp("unwiped")).items():
            patch.setenv(name, value)
        with running_server(tmp_path_factory.mktemp("served") / "log", *ARGUMENTS, *model) as server:
            server.url()
            patch.undo()
            yield server, temporary, short_folder
