from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cloister.models.decoder import Decoder
from tests.vault.node import FakeAnswerer, Room, small_decoder


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return small_decoder(request.param)


@pytest.fixture(scope="session")
def llama() -> Decoder:
    return small_decoder("llama")


@pytest.fixture
def answerer() -> Iterator[FakeAnswerer]:
    fake = FakeAnswerer()
    yield fake
    fake.close()


@pytest.fixture
def room(llama: Decoder, answerer: FakeAnswerer) -> Room:
    return Room(llama, answerer=answerer)
