from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloister.config import EngineSettings
from cloister.models.source import ModelFolder
from tests.forkserver.model import save_model
from tests.forkserver.talk import Controller

SETTINGS = EngineSettings(dtype="fp32", threads=2, kv_cache_mib=4, vault_kv_mib=4, chunk_tokens=32)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def controller(tiny: ModelFolder) -> Iterator[Controller]:
    made = Controller(tiny, SETTINGS)
    yield made
    made.close()
