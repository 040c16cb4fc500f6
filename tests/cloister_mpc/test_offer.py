"""Whether a server offers `mpc`, asked as the controller asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloister.config import ControllerSettings, MpcSettings, Settings
from cloister.controller.external_level import find_offer
from cloister.errors import CloisterError, ServiceUnavailable, SetupError
from cloister.models.source import ModelFolder
from cloister_mpc import offer
from cloister_mpc.level import MpcLevel
from cloister_mpc.offer import BYTES_BESIDE_WEIGHTS, bytes_per_party, require_memory

LLAMA = ModelFolder("m", Path("."), {"model_type": "llama"})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    there = {"spu": True, "jax": True}
    monkeypatch.setattr(offer, "find_spec", lambda name: there[name] or None)
    return there


def why_not(given: Settings, folder: ModelFolder) -> str | None:
    found = find_offer(given, folder)
    assert isinstance(found, MpcLevel | str)
    return found if isinstance(found, str) else None


def settings(mode: Any = "auto", parties: Path | None = None, sealed: Path | None = None) -> Settings:
    return Settings(mpc=MpcSettings(mode=mode, parties=parties), controller=ControllerSettings(sealed_weights=sealed))


def test_where_it_was_switched_off_the_advice_is_to_switch_it_on(installed: dict[str, bool]) -> None:
    for there in (True, False):
        installed["spu"] = there
        advice = why_not(Settings(), LLAMA)
        assert advice is not None and "--mpc off" in advice and "make mpc" not in advice
    installed["spu"] = True
    assert why_not(settings("auto"), LLAMA) is None and why_not(settings("local"), LLAMA) is None


def test_without_spu_auto_does_not_offer_it_and_local_says_what_to_install(installed: dict[str, bool]) -> None:
    installed["spu"] = False
    assert "make mpc" in (why_not(settings("auto"), LLAMA) or "")
    with pytest.raises(SetupError) as refused:
        why_not(settings("local"), LLAMA)
    assert "spu" in refused.value.message and "make mpc" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("given", "folder", "advice"),
    [
        ({"sealed": Path("weights")}, LLAMA, "--mpc-parties"),
        ({}, ModelFolder("m", Path("."), {"model_type": "qwen2"}), "Llama"),
    ],
)
def test_what_cannot_be_shared_out(given: dict[str, Any], folder: ModelFolder, advice: str) -> None:
    told = why_not(settings("auto", **given), folder)
    assert told is not None and advice in told and "make mpc" not in told
    with pytest.raises(CloisterError):
        why_not(settings("local", **given), folder)


def test_a_parties_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SetupError):
        why_not(settings("auto", parties=tmp_path / "none.toml"), LLAMA)
    file = tmp_path / "parties.toml"
    file.touch()
    assert why_not(settings("off", parties=file), LLAMA) is None


def test_memory_is_asked_before_it_is_taken(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    folder = ModelFolder("m", tmp_path, {"model_type": "llama", "torch_dtype": "bfloat16"})
    assert bytes_per_party(folder) == 16_000 + BYTES_BESIDE_WEIGHTS
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99999999 kB\nMemAvailable: 9000000 kB\n")
    require_memory(folder, meminfo)
    meminfo.write_text("MemTotal: 99999999 kB\nMemAvailable: 1000000 kB\n")
    with pytest.raises(ServiceUnavailable, match=r"2\.2 GB of memory.*1\.0 GB are free"):
        require_memory(folder, meminfo)
