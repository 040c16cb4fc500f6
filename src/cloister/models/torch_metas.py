"""What torch's operators give for tensors without data: half of its Python code, needed to build transformers' models.
A process that calls `put_off` before it imports torch starts 0.6 s sooner; `load` fetches them."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_METAS = "torch._meta_registrations"


class _PutOff(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by who walks through all modules
            raise AttributeError(name)
        return getattr(load(), name)


def put_off() -> None:
    if "torch" not in sys.modules:
        sys.modules[_METAS] = _PutOff(_METAS)


def load() -> ModuleType:
    if isinstance(sys.modules.get(_METAS), _PutOff):
        del sys.modules[_METAS]
    return import_module(_METAS)
