"""What the node's half promises, before any of vLLM runs."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cloister.attest.profile import check_profile
from cloister.config import ControllerSettings, EngineSettings, MpcSettings, Settings
from cloister.controller import external_engine
from cloister.controller.attested_settings import attested_settings
from cloister.controller.external_engine import GROUP, find_engine, unverified
from cloister.errors import SetupError
from cloister.process.sandbox.layers import BEST_EFFORT
from cloister_vllm import VERSION
from cloister_vllm.arguments import arguments_of
from cloister_vllm.offer import Vllm


def settings(engine: dict[str, Any] | None = None, **controller: Any) -> Settings:
    controls = ControllerSettings(**{"allow_degraded_sandbox": True, **controller})
    return Settings(engine=EngineSettings(kind="vllm", **(engine or {})), controller=controls, mpc=MpcSettings())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vllm, "_python", lambda self: Path(sys.executable))


def test_our_own_engine_imports_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_engine, "entry_points", lambda **_: pytest.fail("looked for"))
    assert find_engine(Settings()) is None and attested_settings(Settings()).engine == "own"


@pytest.mark.parametrize("value", [None, "planted.offer:Vllm", "cloister_vllm_planted:Vllm"])
def test_without_the_distribution_or_with_another_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    found = () if value is None else (EntryPoint("vllm", value, GROUP),)
    monkeypatch.setattr(external_engine, "entry_points", lambda **_: found)
    with pytest.raises(SetupError, match="cloister-vllm, which is not installed"):
        find_engine(settings())


def test_without_its_environment_it_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    with pytest.raises(SetupError, match="There is no vLLM") as refused:
        find_engine(settings())
    assert "make vllm" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (settings(allow_degraded_sandbox=False), "seccomp"),
        (settings(vault_host="10.0.0.2:7000"), "--vault-host"),
        (settings(release=Path("log")), "--release"),
        (settings(prefix_policy="global"), "--prefix-policy global"),
        (settings(sealed_weights=Path("w")), "--sealed-weights"),
        (settings({"private_layers": 1}), "--private-layers"),
        (settings({"weights": "int8"}), "--weights int8"),
        (settings().model_copy(update={"mpc": MpcSettings(mode="local")}), "--mpc local"),
    ],
)
def test_a_setting_that_it_cannot_keep_is_refused_by_name(installed: None, given: Settings, named: str) -> None:
    with pytest.raises(SetupError, match=named):
        find_engine(given)


def test_evidence_names_engine_version_and_arguments(installed: None) -> None:
    given = settings({"dtype": "fp32", "kv_cache_mib": 256, "max_context": 2048})
    shown = attested_settings(given)
    assert find_engine(given) is not None and shown.engine == "vllm" and shown.mpc == "off"
    for word in (VERSION, "dtype=float32", "block_size=32", "max_model_len=2048"):
        assert word in shown.engine_details and any(word in line for line in shown.in_words())
    assert all(f"{name}={value}" in shown.engine_details for name, value in arguments_of(given.engine).items())
    longest = settings({"kv_cache_mib": 10**9, "max_context": 10**9, "max_running": 10**6, "chunk_tokens": 10**9})
    assert len(attested_settings(longest).engine_details) < 512


def test_it_offers_what_it_can_keep(installed: None) -> None:
    engine = find_engine(settings())
    assert engine is not None and engine.levels == ("open", "shared", "partitioned", "isolated")
    with pytest.raises(SetupError, match="sandbox"):
        check_profile(attested_settings(settings(profile="tenants")), "none", released=False)


def test_verification_that_nobody_asked_for_is_off_and_any_other_is_refused(installed: None) -> None:
    """No vault can compute vLLM's bits again."""
    by_default = unverified(settings(verify="sample:0.1"))
    assert attested_settings(by_default).verified == "off" and find_engine(by_default) is not None
    for mode in ("sample:0.2", "late", "all"):
        with pytest.raises(SetupError, match=f"--verify {mode}"):
            find_engine(unverified(settings(verify=mode)))
    own = Settings(controller=ControllerSettings(verify="sample:0.1"))
    assert unverified(own) is own


CONFINED = """
import os, socket, threading
from cloister_vllm.confine import confine, seal_engine
take_files = confine()
woken, tried, control = threading.Event(), [], socket.socket(fileno=CONTROL)
def attempt(what, *given):
    try:
        what(*given)
    except (OSError, RuntimeError) as refused:
        return type(refused).__name__
    return "done"
def other():
    woken.wait()
    tried.append((attempt(os.listdir, "/"), attempt(open, "/etc/passwd"), attempt(open, "/x", "w")))
thread = threading.Thread(target=other)
thread.start()
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
places = ("127.0.0.1", PORT), ("192.0.2.1", 80)
outside = [attempt(socket.create_connection, place, 2) for place in places]
before = os.open("/etc/passwd", os.O_RDONLY), os.dup(1)
report = seal_engine(take_files, control, allow_degraded=True)
woken.set(), thread.join()
after = attempt(open, "/etc/passwd"), attempt(os.fstat, before[0])
control.send(repr((report.missing, outside, tried, after, os.getpid(), dict(os.environ))).encode())
socket.socket()
control.send(b"it made a socket")
"""


def test_its_process_has_a_network_of_its_own_and_is_sealed_but_for_one_layer() -> None:
    """Also for a thread that ran before the seal. An attack ends it."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as outside:
        ours, theirs = socket.socketpair()
        program = CONFINED.replace("PORT", str(outside.getsockname()[1])).replace("CONTROL", str(theirs.fileno()))
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[theirs.fileno()])
        theirs.close()
        said, more = ours.recv(1 << 16), ours.recv(1 << 16)
    assert said and not more and done.returncode == 128 + signal.SIGSYS, done.stderr
    missing, reached, [(listed, read, written)], after, pid, environment = ast.literal_eval(said.decode())
    assert set(missing) - BEST_EFFORT == {"seccomp"}
    assert "done" not in (*reached, listed, read, written, *after) and pid == 1
    assert set(environment) == {"TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"}
