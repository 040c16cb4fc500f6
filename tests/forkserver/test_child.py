"""What a child does before it is sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from transformers import BloomConfig, FalconConfig, Gemma2Config, PretrainedConfig

from cloister.config import EngineSettings
from cloister.errors import ModelUnsupported
from cloister.forkserver import child
from cloister.forkserver.child import PreloadedModel, computes_beside, waits_for_others, yields_to_others
from cloister.messages.controller_forkserver import Preload
from cloister.messages.controller_packer import Start
from cloister.messages.types import VERSION
from cloister.models.memory_file import create_memory_file, reopen_read_only, seal
from cloister.models.pack_weights import pack_weights
from tests.models.architectures import save_random_model


@pytest.mark.parametrize(
    ("role", "attention_processes", "waits"),
    [("attention", 8, True), ("vault", 8, False), ("vault", 0, True), ("service", 8, False), ("service", 0, False)],
)
def test_who_answers_for_prompts_opens_the_device_as_one_that_waits(
    role: str, attention_processes: int, waits: bool
) -> None:
    assert waits_for_others(role, MagicMock(attention_processes=attention_processes)) is waits


@pytest.mark.parametrize(
    ("role", "shared", "apart", "beside"),
    [
        ("service", False, True, False),
        ("vault", False, True, False),
        ("service", True, True, True),
        ("attention", True, True, True),
        ("vault", True, True, False),
        ("vault", True, False, True),
    ],
)
def test_a_vault_computes_beside_others_unless_it_is_kept_apart(
    role: str, shared: bool, apart: bool, beside: bool
) -> None:
    assert computes_beside(role, MagicMock(shared=shared, vaults_apart=apart)) is beside


@pytest.mark.parametrize(
    ("role", "attention_processes", "yields"),
    [("vault", 8, True), ("vault", 0, False), ("service", 8, False), ("attention", 8, False)],
)
def test_a_vault_that_answers_nobody_yields_to_who_decodes(role: str, attention_processes: int, yields: bool) -> None:
    assert yields_to_others(role, MagicMock(attention_processes=attention_processes)) is yields


@pytest.mark.parametrize(("role", "given", "beside"), [("service", None, True), ("vault", 9, False)])
def test_weights_are_held_before_the_decoder_is_made_of_them(
    role: str, given: int | None, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has a descriptor for others, a vault uses the one it was given."""
    happened: list[Any] = []
    device = MagicMock(survives_fork=False, shared=True, attention_processes=8, vaults_apart=True)
    device.open.side_effect = lambda **how: happened.append(how)
    device.hold_weights.side_effect = lambda *held: happened.append(held) or (7 if held[1] is None else None)
    monkeypatch.setattr(child, "load_decoder", lambda *_: happened.append("decoder") or MagicMock(device=device))
    parts = MagicMock(file=torch.zeros(8))
    model = PreloadedModel(MagicMock(), MagicMock(device=device), MagicMock(), MagicMock(), parts)
    opened, lent = model.opened(role, given)
    how = {"waits": False, "beside": beside, "yields": role == "vault"}
    assert happened == [how, (parts.file, given), "decoder"]
    assert lent == (7 if given is None else None) and opened.decoder is not model.decoder


SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
UNSERVED: dict[str, PretrainedConfig] = {
    "falcon": FalconConfig(**SIZES),
    "bloom": BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=99),
    "gemma2": Gemma2Config(**SIZES, intermediate_size=96, num_key_value_heads=2, head_dim=16),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_a_model_that_is_not_served_stops_the_start(name: str, tmp_path: Path) -> None:
    """The packer refuses what can be seen without computing, the fork server the rest. Nothing is forked before."""
    save_random_model(tmp_path, UNSERVED[name])
    settings = EngineSettings(dtype="fp32", threads=1).model_dump_json().encode()
    weights = create_memory_file("weights")
    with pytest.raises(ModelUnsupported, match=rf"'{name}' are not served"):
        pack_weights(Start(VERSION, "tiny", str(tmp_path), settings), weights)
        seal(weights)
        child.load_model(Preload(VERSION, "tiny", str(tmp_path), settings), reopen_read_only(weights))


def test_a_device_is_shared_as_the_settings_say() -> None:
    settings = EngineSettings(attention_processes=3, vaults_outside_mps=True)
    decoder = MagicMock()
    PreloadedModel(settings, decoder, MagicMock(), MagicMock(), MagicMock()).share("/meet")
    decoder.device.share.assert_called_once_with("/meet", 3, vaults_apart=True)
