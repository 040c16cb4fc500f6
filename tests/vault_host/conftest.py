from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.link.network.credentials import write_secret
from cloister.models.source import ModelFolder
from tests.forkserver.model import save_model
from tests.vault_host.host_process import HostProcess, running_host

ENGINE = ("--dtype", "fp32", "--threads", "1", "--vault-kv-mib", "4", "--chunk-tokens", "64")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "vault-host.key"
    write_secret(path)
    return path


@pytest.fixture(scope="module")
def vault_host(tmp_path_factory: pytest.TempPathFactory, tiny: ModelFolder, key: Path) -> Iterator[HostProcess]:
    """A vault host with the small model, on loopback."""
    log = tmp_path_factory.mktemp("vault_host") / "log"
    with running_host(log, key, "--model", str(tiny.path), *ENGINE) as running:
        running.address()
        yield running
