from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.messages.generation import Failed
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.models.decoder import Decoder
from cloister.models.source import ModelFolder
from tests.cloud import TestCloud
from tests.forkserver.model import save_model
from tests.models.architectures import load_from_files
from tests.served import Server, running_server

Decoders = Callable[[str], Decoder]
TINY = (
    *("--dtype", "fp32", "--kv-cache-mib", "8", "--vault-kv-mib", "8", "--spare-vaults", "1"),
    *("--max-vaults", "8", "--attester", "software"),
)


@pytest.fixture(scope="session", params=["short", pytest.param("whole", marks=pytest.mark.release)])
def model_folder(request: pytest.FixtureRequest) -> ModelFolder:
    """A narrow model with the default's tokenizer, and before a release the default model too."""
    folder: ModelFolder = request.getfixturevalue({"short": "short_folder", "whole": "smollm_folder"}[request.param])
    return folder


@pytest.fixture(scope="session")
def decoders(model_folder: ModelFolder) -> Decoders:
    """The model in a precision, loaded once; one thread, for another group of tests has the other core."""
    loaded: dict[str, Decoder] = {}

    def decoder(dtype: str) -> Decoder:
        if dtype not in loaded:
            form = {"weights": dtype} if dtype == "int8" else {"dtype": dtype}
            device = choose_device(EngineSettings(threads=1, **form))  # type: ignore[arg-type]
            loaded[dtype] = load_from_files(model_folder, device)
        return loaded[dtype]

    torch.set_num_threads(1)
    return decoder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> TestCloud:
    return TestCloud(tmp_path_factory.mktemp("cloud"))


@pytest.fixture(scope="session")
def tiny_server(
    tmp_path_factory: pytest.TempPathFactory, tiny_folder: ModelFolder, cloud: TestCloud
) -> Iterator[Server]:
    """`cloister serve` with that, for strange requests, the secure channel, and calls that pay with tokens."""
    words = ("--model", str(tiny_folder.path), *TINY, *cloud.arguments)
    with running_server(tmp_path_factory.mktemp("served") / "log", *words) as server:
        yield server


class Answer:
    """What one request got: tokens and, where asked for, logprobs."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Node:
    """An engine over the model, run until everyone has an answer."""

    def __init__(self, decoder: Decoder, **settings: int) -> None:
        chosen = EngineSettings(**settings)  # type: ignore[arg-type]
        self.engine = PagedEngine(ModelRunner(decoder, reserve_cache(decoder, chosen.kv_cache_mib)), chosen)

    def answers(self, requests: list[tuple[tuple[int, ...], SamplingParams]], answered: int = 0) -> list[Answer]:
        given = [Answer() for _ in requests]
        for number, (prompt, params) in enumerate(requests):
            verdict = self.engine.submit(
                EngineRequest(number, f"tenant-{number % 3}", prompt, params, answered=answered)
            )
            assert not isinstance(verdict, Failed), verdict.message
        while self.engine.has_work:
            for message in self.engine.step():
                assert not isinstance(message, Failed), message.message
                answer = given[message.request_id]
                answer.tokens += message.tokens
                answer.logprobs += message.logprobs or ()
                answer.prompt_logprobs += message.prompt_logprobs or ()
        stats = self.engine.stats()
        assert stats.blocks_free == stats.blocks_total
        return given
