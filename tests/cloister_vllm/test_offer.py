"""What the node's half promises, before any of vLLM runs."""

from __future__ import annotations

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
from cloister.controller.external_engine import GROUP, find_engine
from cloister.errors import SetupError
from cloister_vllm import VERSION
from cloister_vllm.arguments import arguments_of
from cloister_vllm.confine import APPLIED
from cloister_vllm.offer import Vllm

ACCEPTED = {"allow_degraded_sandbox": True}


def settings(engine: dict[str, Any] | None = None, **controller: Any) -> Settings:
    controls = ControllerSettings(**{**ACCEPTED, **controller})
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
        (settings(allow_degraded_sandbox=False), "not sealed"),
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
    for word in (VERSION, "dtype=float32", "enable_prefix_caching=False", "max_model_len=2048"):
        assert word in shown.engine_details and any(word in line for line in shown.in_words())
    assert all(f"{name}={value}" in shown.engine_details for name, value in arguments_of(given.engine).items())
    longest = settings({"kv_cache_mib": 10**9, "max_context": 10**9, "max_running": 10**6, "chunk_tokens": 10**9})
    assert len(attested_settings(longest).engine_details) < 512


def test_it_offers_open_alone_and_names_every_layer_that_is_missing(installed: None) -> None:
    engine = find_engine(settings())
    assert engine is not None and engine.levels == ("open",)
    assert {"seccomp", "landlock", "empty_root", "pid_namespace", "no_devices"} <= set(engine.missing)
    assert not APPLIED & set(engine.missing) and "network_namespace" not in engine.missing
    with pytest.raises(SetupError, match="sandbox"):
        check_profile(attested_settings(settings(profile="tenants")), "none", released=False)


CONFINED = """
import socket
from cloister_vllm.confine import confine
confine()
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
for place in (("127.0.0.1", PORT), ("192.0.2.1", 80)):
    try:
        socket.create_connection(place, timeout=2)
    except OSError:
        continue
    raise SystemExit("it reached " + repr(place))
try:
    socket.sethostname("x")
except PermissionError:
    print("confined")
"""


def test_its_process_reaches_no_network_but_its_own_loopback() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as outside:
        program = CONFINED.replace("PORT", str(outside.getsockname()[1]))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "confined", done.stdout + done.stderr
