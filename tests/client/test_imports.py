"""What a user installs to talk to a node is small: nothing of the server comes with it."""

import subprocess
import sys

import pytest

MODULES = ["openai", "obfuscating_transport", "proxy", "verification", "sealed_transport", "key_release", "message"]
OURS = {
    *("access", "addresses", "attest", "channel", "checks", "client", "errors", "files", "grammar", "levels"),
    *("obfuscation", "request_fields", "responses", "transparency"),
}
FORBIDDEN = {"torch", "transformers", "fastapi", "starlette", "uvicorn", "numpy", "prometheus_client", "llguidance"}


def loaded_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize("module", MODULES)
def test_the_client_loads_nothing_of_the_server(module: str) -> None:
    loaded = loaded_by(f"import cloister.client.{module}")
    assert not loaded & FORBIDDEN
    assert {name.split(".")[1] for name in loaded if name.startswith("cloister.")} <= OURS


def test_only_who_asks_for_the_sdk_loads_it() -> None:
    assert "openai" not in loaded_by("import cloister.client.proxy, cloister.client.sealed_transport")
    assert "openai" not in loaded_by("import cloister")
    assert "openai" in loaded_by("import cloister; cloister.Client")
