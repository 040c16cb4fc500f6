"""The sealed API as a process: sealed off before it hears of a request, answering over one socket, ending with it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloister.channel.envelope import InnerHead, InnerRequest, Validity
from cloister.channel.sealing import ChannelKey, RequestKeys, address_to, seal_request
from cloister.channel.stream import StreamOpener
from cloister.config import GatewaySettings
from cloister.gateway import prompt_reader
from cloister.keys import load_keys
from cloister.messages.controller_frontend import (
    AdmitKeys,
    Ask,
    CancelSealed,
    SealedPart,
    Serving,
    StartFrontend,
    SubmitTokens,
)
from cloister.messages.controller_sealed_api import AskSealed, FromSealedApi, SealedApiReady, Serve
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.lifecycle import StartFailed
from cloister.messages.prompts import SealedPrompt
from cloister.models.source import ModelFolder
from cloister.process.child import run_module
from cloister.process.hardening import WIPE_FREED_MEMORY
from cloister.prompts.tokenizer import Tokenizer
from cloister.sealed_api.exchange import now_ms
from cloister.sealed_api.process import rehearse
from tests.controller.fakes import Peer
from tests.forkserver.model import save_model
from tests.gateway.fakes import KEY

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SERVING = Serving(300, 512, 64, 16, "fake", levels=("open", "partitioned", "isolated"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


class PlayedController(Peer):
    """The controller, played: started a sealed API and speaks to it."""

    def __init__(self, folder: ModelFolder, settings: GatewaySettings) -> None:
        ours, theirs = socket.socketpair()
        self.keeper = run_module("cloister.sealed_api", theirs, **WIPE_FREED_MEMORY)
        super().__init__(ours, FromSealedApi)
        self._node = ChannelKey.generate()
        chosen = settings.model_dump_json().encode()
        keys = load_keys(settings).entries
        self.say(StartFrontend(chosen, folder.name, str(folder.path), 1, False, keys), SERVING)

    async def next_within(self, kind: Any, seconds: float = 240) -> Any:
        async with asyncio.timeout(seconds):
            while not self.messages:
                assert self.keeper.poll() is None, "it ended"
                await asyncio.sleep(0.02)
        return await self.next(kind)

    @property
    def process(self) -> psutil.Process:
        [child] = psutil.Process(self.keeper.pid).children()
        return child

    def ask(self, number: int, body: Any, prompts: int = 1, path: str = CHAT) -> StreamOpener:
        enc, keys = address_to(self._node.public)
        valid = Validity.beginning(now_ms(), 0)
        inner = InnerRequest("POST", path, tuple(KEY.items()), json.dumps(body).encode(), valid)
        self.say(_serve(number, enc, self._node.accept(enc), seal_request(keys.request, enc, inner.encode()), prompts))
        return StreamOpener(keys.response, enc)

    async def answer(self, opener: StreamOpener) -> tuple[int, bytes]:
        frames: list[Any] = []
        while not opener.ended:
            frames += opener.feed((await self.next_within(SealedPart)).data)
        return InnerHead.decode(frames[0].data).status, b"".join(frame.data for frame in frames[1:])

    def end(self) -> None:
        self.die()
        self.keeper.wait(60)


def _serve(number: int, enc: bytes, keys: RequestKeys, sealed: bytes, prompts: int) -> Serve:
    return Serve(number, enc, sealed, prompts, keys.request, keys.response)


@pytest.fixture
async def controller(tiny: ModelFolder) -> AsyncIterator[PlayedController]:
    controller = PlayedController(tiny, GatewaySettings())
    await controller.next_within(SealedApiReady)
    yield controller
    controller.end()


async def test_it_starts_behind_more_open_files_than_it_may_have(tiny: ModelFolder) -> None:
    with ExitStack() as opened:
        for _ in range(300):
            opened.enter_context(open(os.devnull))
        controller = PlayedController(tiny, GatewaySettings())
    await controller.next_within(SealedApiReady)
    controller.end()


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": {"sealed": 1}, "max_tokens": 8, **fields}


async def test_it_has_neither_network_nor_files_nor_powers(controller: PlayedController) -> None:
    pid = controller.process.pid
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
    assert {status[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert status["NSpid"].split()[-1] == "1"
    if os.geteuid() == 0:
        for space in ("net", "mnt", "ipc", "uts", "user", "pid"):
            assert os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}")
        assert os.listdir(f"/proc/{pid}/root") == []
        interfaces = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] in ([], ["lo"])
        assert Path(f"/proc/{pid}/net/tcp").read_text().count("\n") == 1, "nothing listens"
        left = Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0").split(b"\0")
        assert all(b"glibc.malloc" in each for each in left if each), "glibc keeps its own settings where they were"
        kinds = {os.readlink(each).split(":")[0] for each in Path(f"/proc/{pid}/fd").iterdir()}
        assert kinds <= {"socket", "anon_inode", "/dev/null"}


async def test_it_answers_at_every_level(controller: PlayedController) -> None:
    for number, level in enumerate(("partitioned", "isolated"), 1):
        opener = controller.ask(number, body(protection=level, logprobs=True, n=2))
        asked = await controller.next_within(AskSealed)
        assert asked.prompt == SealedPrompt(number, 0, "messages") and asked.ask.prompt == b""
        assert (asked.ask.level, asked.ask.tenant) == (level, "development")
        for request_id in (asked.ask.request_id, *(each.request_id for each in asked.ask.also)):
            controller.say(Accepted(request_id, 7), Tokens(request_id, (40, 41), finish="length"))
        status, answer = await controller.answer(opener)
        assert status == 200 and json.loads(answer)["usage"]["prompt_tokens"] == 7


async def test_it_answers_in_the_form_of_responses(controller: PlayedController) -> None:
    given = {"model": "tiny", "input": {"sealed": 1}, "max_output_tokens": 8, "stream": True}
    opener = controller.ask(1, given, path="/v1/responses")
    asked = await controller.next_within(AskSealed)
    controller.say(Accepted(asked.ask.request_id, 7), Tokens(asked.ask.request_id, (40, 41), finish="length"))
    status, answer = await controller.answer(opener)
    assert status == 200 and b"event: response.incomplete" in answer


async def test_at_open_it_reads_long_prompts_too(controller: PlayedController) -> None:
    """In its thread, which was there before the seal."""
    messages = [{"role": "user", "content": "ab"}] * 100
    opener = controller.ask(1, body(messages=messages, protection="open", max_tokens=2), prompts=0)
    status, answer = await controller.answer(opener)
    assert status == 400 and b"context" in answer
    messages = [{"role": "user", "content": ""}] * 66
    opener = controller.ask(2, body(messages=messages, protection="open", max_tokens=2), prompts=0)
    heard = await controller.next_within(
        (SubmitTokens, SealedPart)
    )  # as the template's own words fit the context or not
    assert isinstance(heard, SubmitTokens | SealedPart) and not opener.ended


async def test_what_it_may_read_is_verified_by_a_vault_where_asked(controller: PlayedController) -> None:
    """The prompt goes there as it was read: the socket takes this message, too."""
    opener = controller.ask(1, body(messages=[{"role": "user", "content": "a"}], protection="open", verify=True), 0)
    ask = await controller.next_within(Ask)
    assert (ask.level, ask.verify) == ("partitioned", True) and ask.prompt
    controller.say(Accepted(ask.request_id, 7), Tokens(ask.request_id, (40, 41), finish="length"))
    assert (await controller.answer(opener))[0] == 200


async def test_its_rehearsal_leaves_no_thread(tiny: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with two threads cannot leave the host. The end of its reader is waited for."""
    ended = []

    class Watched(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait, cancel_futures=cancel_futures)
            ended.append(wait)

    monkeypatch.setattr(prompt_reader, "ThreadPoolExecutor", Watched)
    await rehearse(Tokenizer(tiny), "tiny", GatewaySettings())
    assert ended == [True]
    assert not [one for one in threading.enumerate() if one.name.startswith("prompt-reader")]


async def test_what_is_odd_neither_stops_nor_opens_anything(controller: PlayedController) -> None:
    controller.say(Serve(1, bytes(32), bytes(700), 1, bytearray(32), bytearray(32)), CancelSealed(5))
    failed = await controller.next_within(Failed)
    assert (failed.request_id, failed.code) == (1, "channel_broken")
    status, answer = await controller.answer(controller.ask(2, {"messages": 1}))
    assert status == 400 and b"error" in answer
    opener = controller.ask(3, body(stream=True))
    asked = await controller.next_within(AskSealed)
    controller.say(CancelSealed(3))
    assert (await controller.next_within(Cancel)).request_id == asked.ask.request_id
    assert not opener.ended


async def test_it_ends_with_its_socket(tiny: ModelFolder) -> None:
    controller = PlayedController(tiny, GatewaySettings())
    await controller.next_within(SealedApiReady)
    process = controller.process
    controller.end()
    process.wait(60)


async def test_keys_change_behind_the_seal_and_what_prevents_a_start_is_told(
    controller: PlayedController, tmp_path: Path
) -> None:
    controller.say(AdmitKeys(()))
    status, answer = await controller.answer(controller.ask(1, body()))
    assert status == 401 and b"invalid_api_key" in answer
    other = PlayedController(ModelFolder("none", tmp_path / "none", {}), GatewaySettings())
    failed = await other.next_within(StartFailed)
    assert failed.code == "model_not_found" and "config.json" in failed.message
    other.end()
