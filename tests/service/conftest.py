from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cloister.config import EngineSettings
from cloister.models.source import ModelFolder, open_folder
from cloister.service.handle import ServiceHandle
from tests.models.architectures import CONFIGS, save_random_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    path = tmp_path_factory.mktemp("tiny-llama")
    save_random_model(path, CONFIGS["llama"])
    return open_folder(path, "tiny-llama")


@pytest.fixture
async def service(tiny_folder: ModelFolder) -> AsyncIterator[ServiceHandle]:
    handle = await ServiceHandle.start(tiny_folder, EngineSettings(dtype="fp32", kv_cache_mib=2, threads=1))
    yield handle
    await handle.close()
