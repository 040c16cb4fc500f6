from __future__ import annotations

import pytest

from cloister.grammar.compiled import learn
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(smollm_folder: ModelFolder) -> Tokenizer:
    return Tokenizer(smollm_folder)


@pytest.fixture
def words(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, whose words this process knows."""
    learn(tokenizer)
    return tokenizer
