"""A real fork server with a small model: its children answer, are sealed, and live no longer than it does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.messages.controller_forkserver import Preloaded, Spawn
from cloister.messages.controller_service import AttachLink, GeneratePartitioned
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    LeaseCores,
    LinkBroken,
    Prefilled,
    PromptAccepted,
    Release,
    VaultReady,
    WantCores,
)
from cloister.messages.frames import encode_frame
from cloister.messages.generation import Failed, Ready, Tokens
from cloister.messages.lifecycle import StartFailed
from cloister.messages.prompts import TextPrompt, write_prompt
from cloister.messages.types import VERSION, Partition, SamplingParams
from cloister.models.source import ModelFolder
from cloister.prompts.reading import PromptReading
from cloister.prompts.tokenizer import Tokenizer
from tests.forkserver.conftest import SETTINGS
from tests.forkserver.talk import Child, Controller
from tests.models.architectures import load_from_files

TEXT = "What is said here stays here, and is longer than one chunk of the prefill."
TAG = "<confidential>"
TAGGED = "You are a helpful assistant, and patient. <confidential>What is said here</confidential> stays here."


@pytest.fixture(scope="module")
def unprotected(tiny: ModelFolder) -> Iterator[PagedEngine]:
    """An engine without any vault, on the same model."""
    settings = SETTINGS.model_copy(update={"threads": 1})
    decoder = load_from_files(tiny, choose_device(settings))
    yield PagedEngine(ModelRunner(decoder, reserve_cache(decoder, settings.kv_cache_mib)), settings)


def expected(engine: PagedEngine, tiny: ModelFolder, text: str, params: SamplingParams) -> list[int]:
    prompt = PromptReading(Tokenizer(tiny), 301, 512).read(TextPrompt(text, TAG in text))
    assert not isinstance(
        engine.submit(EngineRequest(1, "t", prompt.tokens, params, prompt.public)),
        Failed,
    )
    tokens: list[int] = []
    while engine.has_work:
        for message in engine.step():
            assert isinstance(message, Tokens)
            tokens += message.tokens
    return tokens


def ready_vault(controller: Controller) -> Child:
    vault = controller.spawn("vault")
    assert vault.line.handle() == VaultReady(VERSION)
    return vault


def first_of(vault: Child, text: str, params: SamplingParams, number: int = 1) -> Prefilled:
    vault.line.send(AssignPrompt(number, "partitioned", write_prompt(TextPrompt(text, TAG in text)), params))
    assert isinstance(vault.line.handle(), PromptAccepted)
    while not isinstance(message := vault.line.handle(), Prefilled):
        if isinstance(message, WantCores):
            vault.line.send(LeaseCores(1))
    assert vault.line.handle() == CoresDone()
    return message


def answer_of(line, number: int) -> list[int]:
    tokens: list[int] = []
    finish = None
    while finish is None:
        message = line.handle()
        assert not isinstance(message, Failed | None), message
        if isinstance(message, WantCores):
            line.send(LeaseCores(1))
        if isinstance(message, Tokens) and message.request_id == number:
            tokens += message.tokens
            finish = message.finish
    return tokens


SAMPLED = SamplingParams(max_tokens=20, temperature=0.8, seed=5)


def test_it_says_what_it_loaded(controller: Controller):
    assert isinstance(controller.preloaded, Preloaded)
    told = controller.preloaded
    assert (told.heads, told.dim, told.layers, told.partitionable) == (6, 16, 3, True)


def test_vaults_choose_the_first_token_an_unprotected_engine_would(controller, unprotected, tiny):
    vaults = [ready_vault(controller) for _ in range(3)]
    for number, vault in enumerate(vaults):
        text = f"{number}: {TEXT}"
        assert first_of(vault, text, SAMPLED).sequences[0].token == expected(unprotected, tiny, text, SAMPLED)[0]


def test_an_isolated_answer_is_the_unprotected_one(controller, unprotected, tiny):
    vault = ready_vault(controller)
    vault.line.send(AssignPrompt(3, "isolated", write_prompt(TextPrompt(TAGGED, True)), SAMPLED))
    assert isinstance(vault.line.handle(), PromptAccepted)
    assert answer_of(vault.line, 3) == expected(unprotected, tiny, TAGGED, SAMPLED)


@pytest.mark.parametrize("text", [TEXT, TAGGED], ids=["all private", "with a public span"])
def test_service_and_vault_together_give_the_unprotected_answer_turn_after_turn(controller, unprotected, tiny, text):
    service = controller.spawn("service")
    assert isinstance(service.line.handle(), Ready)
    vault = ready_vault(controller)
    service.line.send(AttachLink(4), descriptors=vault.link.service_descriptors)
    for number in range(3):
        first = first_of(vault, text, SAMPLED, number)
        [begun] = first.sequences
        partition = Partition(4, begun.slot, begun.token, begun.origin, begun.rotation)
        service.line.send(GeneratePartitioned(number, "t", first.public, SAMPLED, partition))
        assert [begun.token, *answer_of(service.line, number)] == expected(unprotected, tiny, text, SAMPLED)
        vault.line.send(Release(number))
        text += " And then?"
    service.kill()
    assert service.ended()


def test_a_killed_child_is_noticed_and_costs_the_others_nothing(controller, unprotected, tiny):
    victim, witness = ready_vault(controller), ready_vault(controller)
    assert not victim.ended(0)
    victim.kill()
    assert victim.ended() and victim.line.handle() is None
    assert first_of(witness, TEXT, SAMPLED).sequences[0].token == expected(unprotected, tiny, TEXT, SAMPLED)[0]
    assert ready_vault(controller)


def test_a_vault_ends_when_its_controller_hangs_up(controller):
    vault = ready_vault(controller)
    vault.line.socket.shutdown(socket.SHUT_RDWR)
    assert vault.ended()


def test_a_vault_outlives_its_link(controller):
    vault = ready_vault(controller)
    vault.link.close_down()
    assert isinstance(vault.line.handle(), LinkBroken)
    assert not vault.ended(0)
    vault.line.socket.shutdown(socket.SHUT_RDWR)
    assert vault.ended()


def test_a_vault_that_hears_nonsense_ends(controller):
    vault = ready_vault(controller)
    vault.line.socket.sendall(b"\xff" * 64)
    assert vault.ended()


def status_of(folder: Path) -> dict[str, str]:
    lines = (folder / "status").read_text().splitlines()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}


def test_every_thread_of_a_child_is_sealed(controller):
    vault = ready_vault(controller)
    first_of(vault, TEXT, SAMPLED)
    threads = list(Path(f"/proc/{vault.pid}/task").iterdir())
    assert len(threads) == 3  # Python's, the kernels' one helper, and the one that answers the link
    for thread in threads:
        status = status_of(thread)
        assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)
    assert status_of(Path(f"/proc/{vault.pid}"))["NSpid"].split()[-1] == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a process that is not dumpable")
@pytest.mark.parametrize("given_weights", [False, True])
def test_a_child_has_no_files_and_no_descriptors_but_its_own(controller, given_weights):
    """Nor that of weights in a device's memory, when it is sealed."""
    weights = os.memfd_create("weights") if given_weights else None
    vault = controller.spawn("vault", weights)
    assert vault.line.handle() == VaultReady(VERSION)
    if weights is not None:
        os.close(weights)
    assert os.listdir(f"/proc/{vault.pid}/root") == []
    folder = Path(f"/proc/{vault.pid}/fd")
    open_files = sorted(os.readlink(each).split(":")[0] for each in folder.iterdir())
    assert [name.rpartition("/")[2] for name in open_files] == ["null", "null", "null", "anon_inode", "socket"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the memory map of a process that is not dumpable")
def test_an_idle_vault_takes_little_memory_of_its_own(controller):
    vault = ready_vault(controller)
    lines = Path(f"/proc/{vault.pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {key: int(value.split()[0]) for key, value in (line.split(":", 1) for line in lines)}
    assert sizes["Private_Dirty"] + sizes["Private_Clean"] < 40 * 1024


def test_a_vaults_memory_is_limited_to_little_more_than_its_cache(controller):
    vault = ready_vault(controller)
    limits = Path(f"/proc/{vault.pid}/limits").read_text().splitlines()
    limit = next(int(line.split()[3]) for line in limits if line.startswith("Max data size"))
    mapped = int(status_of(Path(f"/proc/{vault.pid}"))["VmData"].split()[0]) * 1024
    assert mapped < limit < mapped + (80 << 20)


@pytest.mark.slow
def test_what_cannot_be_loaded_is_said_with_a_code(tiny, tmp_path):
    nowhere = ModelFolder("nowhere", tmp_path, tiny.config)
    controller = Controller(nowhere, SETTINGS, weights_of=tiny)
    assert isinstance(controller.preloaded, StartFailed) and controller.preloaded.code == "model_not_found"
    assert controller.process.wait(60) == 0
    controller.close()


@pytest.mark.slow
def test_kernels_that_the_weights_are_not_packed_for_are_refused(tiny):
    other = EngineSettings.model_validate({**SETTINGS.model_dump(), "kernels": "reference"})
    controller = Controller(tiny, other, weights_of=tiny, packed_with=SETTINGS)
    assert isinstance(controller.preloaded, StartFailed) and controller.preloaded.code == "setup_error"
    controller.close()


@pytest.fixture(scope="module")
def reference(tiny: ModelFolder) -> Iterator[Controller]:
    made = Controller(tiny, SETTINGS.model_copy(update={"kernels": "reference"}))
    yield made
    made.close()


@pytest.mark.slow
def test_with_reference_kernels_a_vault_serves_isolated_only(reference):
    assert not reference.preloaded.partitionable
    vault = ready_vault(reference)
    for number, level in enumerate(("partitioned", "isolated")):
        vault.line.send(AssignPrompt(number, level, write_prompt(TextPrompt("ab")), SamplingParams(max_tokens=2)))
    refused = vault.line.handle()
    assert isinstance(refused, Failed) and refused.code == "protection_unavailable"
    assert isinstance(vault.line.handle(), PromptAccepted)
    assert len(answer_of(vault.line, 1)) == 2


def test_forking_before_loading_is_an_error():
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "cloister.forkserver", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        ours.sendall(encode_frame((Spawn(1, "vault"),)))
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0 and b" CRITICAL forkserver: Ended by ProtocolError at process.py:" in said


@pytest.mark.slow
@pytest.mark.parametrize(("which", "ending"), [("controller", "killed"), ("reference", "hung up")])
def test_all_children_end_with_the_forkserver(request, which, ending):
    """The last test: the fork servers are gone then."""
    forkserver = request.getfixturevalue(which)
    vaults = [ready_vault(forkserver) for _ in range(3)]
    if ending == "killed":
        forkserver.process.kill()
    else:
        forkserver.line.socket.shutdown(socket.SHUT_RDWR)
    assert all(vault.ended() for vault in vaults)
    assert forkserver.process.wait(60) is not None
