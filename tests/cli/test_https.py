"""`cloister serve --tls-cert`: a node that ends TLS itself, in its real sandbox."""

from __future__ import annotations

import re
import signal
import ssl
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from cloister.config import DEVELOPMENT_KEY
from tests.certificates import write_pair
from tests.cli.conftest import Run
from tests.cli.test_serve import SMALL, SOFTWARE, eventually
from tests.forkserver.model import save_model
from tests.served import is_confined, running_server


def trusting(certificate: str) -> httpx.Client:
    return httpx.Client(verify=ssl.create_default_context(cadata=certificate), timeout=60)


@pytest.mark.slow
def test_a_node_serves_https_and_takes_a_new_certificate_while_it_runs(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ("--model", str(save_model(tmp_path / "tiny").path), "--dtype", "fp32", *SMALL)
    settings = write_pair(tmp_path)
    assert settings.tls_cert and settings.tls_key
    monkeypatch.setenv("SSL_CERT_FILE", str(settings.tls_cert))
    given = ("--tls-cert", str(settings.tls_cert), "--tls-key", str(settings.tls_key))
    with running_server(tmp_path / "log", *model, *given) as server:
        url, first, key = server.url(), settings.tls_cert.read_text(), settings.tls_key.read_bytes()
        assert url.startswith("https://127.0.0.1:") and is_confined(server.child("gateway"))
        with OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY) as client:
            stream = client.completions.create(model="tiny", prompt="Once", max_tokens=4, stream=True)
            assert list(stream)[-1].choices[0].finish_reason
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http") + "/health")
        verified = run("verify", url, *SOFTWARE, "--json")
        assert verified.exit_code == 0, verified.output
        assert run("chat", "Hi", "--url", url, *SOFTWARE, "--max-tokens", "2").exit_code == 0

        second = write_pair(tmp_path, "two").tls_cert
        assert second
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "The certificate was read again" in server.said)
        with trusting(second.read_text()) as http, trusting(first) as old:
            eventually(lambda: shows(http, url))
            assert not shows(old, url)
            settings.tls_key.write_bytes(key)
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: "The certificate stays as it was" in server.said)
            assert shows(http, url)
            server.child("gateway").kill()
            eventually(lambda: shows(http, url))
        logged = [line for line in server.said.splitlines() if re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z ", line)]
        assert len(logged) == 3 and all(" controller: " in line for line in logged), server.said
        assert "PRIVATE" not in server.said and "Traceback" not in server.said and "keys file" not in server.said


def shows(client: httpx.Client, url: str) -> bool:
    """Whether a new connection is greeted with the certificate that this client trusts."""
    try:
        return client.get(f"{url}/health", headers={"Connection": "close"}).status_code == 200
    except httpx.TransportError:
        return False


def test_a_pair_that_does_not_belong_together_stops_the_start(tmp_path: Path, run: Run) -> None:
    settings = write_pair(tmp_path)
    assert settings.tls_cert and settings.tls_key
    certificate = ("--tls-cert", str(settings.tls_cert))
    alone = run("serve", "--port", "0", *certificate, "--model", "./no-such-model")
    assert alone.exit_code == 2 and "--tls-key" in alone.stderr
    (other := tmp_path / "other").mkdir()
    wrong = run("serve", "--port", "0", *certificate, "--tls-key", str(write_pair(other).tls_key), "--model", "./no")
    assert wrong.exit_code == 2 and "is not the key of" in wrong.stderr
