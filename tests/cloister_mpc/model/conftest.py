from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cloister_mpc.model.tiny import TinyModel


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """One for all tests of this folder: calibrating it compiles its layers."""
    from tests.cloister_mpc.model.tiny import tiny_model

    return tiny_model("llama", tmp_path_factory.mktemp("tiny"))
