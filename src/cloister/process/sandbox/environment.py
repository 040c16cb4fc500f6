"""Environment variables: they name folders, users and now and then a key, so a sealed process has none of them."""

from __future__ import annotations

import ctypes
import os

_FIXED = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""No thread can be started after the seal: these tell libraries not to try."""

_environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")


def clean_environment() -> bool:
    """Wipes the strings where they lie (on the stack since exec, /proc/PID/environ shows it), then starts afresh."""
    index = 0
    while _environ and (address := _environ[index]):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
        index += 1
    ctypes.CDLL(None).clearenv()
    os.environ.clear()
    os.environ.update(_FIXED)
    return dict(os.environ) == _FIXED
