"""The client may import this package: it brings in nothing of the server's, and Sigstore only when it is needed."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import pkgutil, sys, importlib
import cloister.transparency as package
for module in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"cloister.transparency.{module.name}")
print("\\n".join(sorted(sys.modules)))
"""


def test_the_log_stands_alone() -> None:
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    allowed = {"cloister", "cloister.errors"}
    ours = {name for name in loaded if name.split(".")[0] == "cloister"} - allowed
    assert {name.split(".")[1] for name in ours} == {"transparency", "checks", "files"}
    assert not {"sigstore", "torch", "numpy", "fastapi", "httpx", "requests", "openai"} & set(loaded)
