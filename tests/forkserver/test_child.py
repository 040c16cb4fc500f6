"""What a child does before it is sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import torch
from transformers import BloomConfig, FalconConfig, Gemma2Config, PretrainedConfig

from cloister.config import EngineSettings
from cloister.errors import ModelUnsupported
from cloister.forkserver import child
from cloister.forkserver.child import PreloadedModel
from cloister.messages.controller_forkserver import Preload
from cloister.messages.controller_packer import Start
from cloister.models.memory_file import create_memory_file, reopen_read_only, seal
from cloister.models.pack_weights import pack_weights
from cloister.placement import Role
from tests.models.architectures import save_random_model


@pytest.mark.parametrize(("role", "given"), [("service", None), ("vault", 9)])
def test_weights_are_held_before_the_decoder_is_made_of_them(
    role: Role, given: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has a descriptor for others, a vault uses the one it was given."""
    happened: list[Any] = []
    device = MagicMock(survives_fork=False)
    device.open.side_effect = happened.append
    device.hold_weights.side_effect = lambda *held: happened.append(held) or (7 if held[1] is None else None)
    monkeypatch.setattr(child, "load_decoder", lambda *_: happened.append("decoder") or MagicMock(device=device))
    parts = MagicMock(file=torch.zeros(8))
    model = PreloadedModel(MagicMock(), MagicMock(device=device), MagicMock(), MagicMock(), parts)
    opened, lent = model.opened(role, given)
    assert happened == [role, (parts.file, given), "decoder"]
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
        pack_weights(Start("tiny", str(tmp_path), settings), weights)
        seal(weights)
        child.load_model(Preload("tiny", str(tmp_path), settings), reopen_read_only(weights))


@pytest.mark.parametrize("can", [True, False])
def test_a_device_is_shared_as_the_settings_say_unless_the_model_cannot_be_partitioned(can: bool) -> None:
    """Such a model has no level that needs MPS: its processes take turns, and its vaults need no attention process."""
    decoder = MagicMock()
    decoder.device.can_share.return_value = can
    model = PreloadedModel(EngineSettings(attention_processes=3), decoder, MagicMock(), MagicMock(), MagicMock())
    model.share("/meet")
    assert decoder.device.share.mock_calls == ([call("/meet", 3)] if can else [])


@pytest.mark.parametrize("wrong", [None, RuntimeError("a rehearsal that failed")])
def test_a_child_waits_for_its_kernels_before_it_ends(wrong: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of MPS whose kernel runs when it ends ends all others. A device that is lost holds no child up."""
    happened = MagicMock()
    happened.finish.side_effect = RuntimeError("the device is lost")
    happened.exit.side_effect = SystemExit
    monkeypatch.setattr(child, "_live", MagicMock(side_effect=wrong))
    monkeypatch.setattr(child.os, "_exit", happened.exit)
    with pytest.raises(SystemExit):
        child.live(MagicMock(), MagicMock(device=happened), [], allow_degraded=False)
    assert happened.mock_calls == [call.finish(), call.exit(int(wrong is not None))]
