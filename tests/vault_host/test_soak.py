"""Half an hour of eight users at a server whose vaults are elsewhere: no vault is lost, no answer is another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister.models.source import ModelFolder
from tests.vault_host.soak import deployed, soak

SECONDS = float(os.environ.get("CLOISTER_SOAK_SECONDS", "1800"))


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(SECONDS + 600)
async def test_eight_users_lose_no_vault(short_folder: ModelFolder, tmp_path: Path) -> None:
    async with deployed(short_folder, tmp_path) as node:
        found = await soak(node, short_folder, SECONDS)
    assert found.wrong == []
    assert found.answers.total() > 8
