"""A provider's weights from its machine to an answer: sealed, waited for, released, served, and never on a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import httpx
import psutil
import pytest

from cloister.attest.policy import Policy
from cloister.client.key_release import release_key
from cloister.client.verification import NodeNotVerified
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ServiceUnavailable
from cloister.sealed_weights.file import seal_weights
from cloister.transparency.note import SigningKey
from tests.certificates import write_pair
from tests.forkserver.model import save_model
from tests.served import is_confined, lives, running_server

KEY = os.urandom(32)
PROVIDER = SigningKey.generate("provider.example/weights")
SMALL = ("--dtype", "fp32", "--kv-cache-mib", "16", "--vault-kv-mib", "16", "--spare-vaults", "1")
ACCEPTED = Policy(allow_software_tee=True, accept_missing_layers=("memory_lock", "no_swap"))


@pytest.mark.slow
def test_from_a_sealed_file_to_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "CLOISTER_STATE", "HOME", "XDG_RUNTIME_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    model = save_model(tmp_path / "tiny")
    canary = (model.path / "model.safetensors").read_bytes()[-64:]
    seal_weights(sorted(model.path.iterdir()), "tiny", tmp_path / "sealed", KEY, PROVIDER)
    shutil.rmtree(model.path)
    options = ("--sealed-weights", str(tmp_path / "sealed"), "--provider-key", str(PROVIDER.verifier))
    with running_server(tmp_path / "log", *SMALL, *options) as server:
        url = server.wait_for(r"waiting for its key at (http://\S+)")
        assert _ask(url).status_code == 503
        with pytest.raises(NodeNotVerified):
            release_key(url, KEY, Policy())
        release_key(url, KEY, ACCEPTED)
        assert server.url() == url, "it serves where it waited"
        for level in ("open", "partitioned", "isolated"):
            answer = _ask(url, level)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 4
        with pytest.raises(ServiceUnavailable, match="does not wait"):
            release_key(url, KEY, ACCEPTED)
        assert not _holders_of_parameters(server.process.pid), "the packed weights are the only copy"
    assert canary not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_ctrl_c_while_it_waits_under_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = write_pair(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.tls_cert))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    seal_weights([tmp_path / "config.json"], "tiny", tmp_path / "sealed", KEY, PROVIDER)
    options = ("--sealed-weights", str(tmp_path / "sealed"), "--provider-key", str(PROVIDER.verifier))
    tls = ("--tls-cert", str(pair.tls_cert), "--tls-key", str(pair.tls_key))
    with running_server(tmp_path / "log", *SMALL, *options, *tls) as server:
        url = server.wait_for(r"waiting for its key at (https://\S+)")
        assert _ask(url).status_code == 503
        children = server.children()
        assert is_confined(server.child("key-waiting"))
        assert server.stop() == 0 and server.said.endswith("Stopped.\n")
        assert children and not any(lives(child) for child in children)
    with pytest.raises(httpx.ConnectError):
        _ask(url)


def _ask(url: str, level: str = "partitioned") -> httpx.Response:
    headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}", "X-Cloister-Protection": level}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
    body["logit_bias"] = {"2": -100}  # the token that would end the answer early
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def _holders_of_parameters(pid: int) -> list[int]:
    """Processes of the node that still have a parameters' file open or mapped."""
    node = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return [one.pid for one in node if ".safetensors" in Path(f"/proc/{one.pid}/maps").read_text()]
