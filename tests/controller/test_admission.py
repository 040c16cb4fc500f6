"""The keys file is read again when somebody says so; one that cannot be used changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cloister.config import GatewaySettings
from cloister.controller import frontend as module
from cloister.controller.frontend import Admission
from cloister.errors import Unauthorized
from cloister.keys import KeyRing, key_line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys]\n{key_line('one', 'ann', 'lab')}")
    return path


async def test_keys_are_added_and_revoked(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(GatewaySettings(keys_file=file))
    ring = KeyRing(admission.keys)
    admission.watch(ring.admit)
    assert ring.caller("one").trust_group == "lab"
    file.write_text(f"[keys]\n{key_line('two', 'bob', operator=True)}")
    admission.hung_up()
    assert ring.caller("two").operator and KeyRing(admission.keys).caller("two").tenant == "bob"
    with pytest.raises(Unauthorized):
        ring.caller("one")
    file.write_text("[keys]")
    admission.hung_up()
    assert ring.caller("two").tenant == "bob" and "admits no key" in caplog.text


async def test_the_signal_of_a_closed_terminal_ends_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(module, "_has_terminal", lambda: True)
    admission = Admission(GatewaySettings(keys_file=file))
    admission.hung_up()
    assert not sent
    monkeypatch.setattr(module, "_has_terminal", lambda: False)
    admission.hung_up()
    assert sent == [signal.SIGTERM]


async def test_without_a_file_there_is_nothing_to_read(caplog: pytest.LogCaptureFixture) -> None:
    Admission(GatewaySettings()).hung_up()
    assert "--keys FILE" in caplog.text
