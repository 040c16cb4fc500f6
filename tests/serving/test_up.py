"""`cloister up --relay --issuer`: all of a cloud on one machine, asked by the real `openai` client."""

from __future__ import annotations

import socket
from pathlib import Path

import openai
import pytest

from cloister.models.source import ModelFolder
from tests.served import Command, lives

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KEY = "sk-of-a-program"
PARTS = ("issuer", "node", "relay", "proxy")
SMALL = {"MPC": "off", "THREADS": "1", "VERIFY": "off", "DETECTOR": "false", "DTYPE": "fp32", "SPARE_VAULTS": "1"}
"""A node without what takes long to start: parties, which take gigabytes, and a detector."""


def test_one_command_starts_all_of_it_and_any_openai_client_is_answered(
    tiny_folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "DATA"):
        monkeypatch.setenv(f"CLOISTER_{name}", str(tmp_path / name))
    monkeypatch.delenv("CLOISTER_API_KEY", raising=False)
    for name, value in SMALL.items():
        monkeypatch.setenv(f"CLOISTER_SERVE_{name}", value)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    others = [word for part in ("proxy", "relay", "issuer") for word in (f"--{part}-port", "0")]
    words = ("up", "--relay", "--issuer", "--model", str(tiny_folder.path), "--port", str(port), *others)
    command = Command(tmp_path / "said", *words)
    try:
        url = command.wait_for(r"any OpenAI client at (\S+),", 400)
        assert all(f"\n{part:8}" in f"\n{command.said}" for part in PARTS)
        started = command.children()
        with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=240) as client:
            model = client.models.list().data[0].id
            asked = {"model": model, "messages": [{"role": "user", "content": "a b"}], "max_tokens": 8}
            whole = client.chat.completions.create(**asked, temperature=0)
            stream = client.chat.completions.create(**asked, temperature=0, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert whole.choices[0].message.content == streamed
        spent = [path.stat().st_size for path in (tmp_path / "DATA").rglob("*.spent")]
        assert sum(spent) == 3 * 32, "each call took a token, which names nothing"
        assert all("sk-" not in word for word in command.words_of_children()), "no key in the list of processes"
    finally:
        status = command.stop()
    assert status == 0 and not any(map(lives, started))
    assert KEY not in command.said
