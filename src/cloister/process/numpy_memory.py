"""numpy's arrays in Python's allocator, which wipes (hardening.py). numpy itself keeps small arrays' content."""

import ctypes
from importlib import import_module

import numpy as np

from cloister.errors import SetupError

NAME = b"cloister"
_RAW_DOMAIN = 0
_SET_HANDLER = 304  # PyDataMem_SetHandler in numpy's table of functions, since 1.22 and in 2 (numpy_api.py)


class _Allocator(ctypes.Structure):
    """PyMemAllocatorEx; numpy's PyDataMemAllocator passes `free` the size too, which Python's does not read."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """PyDataMem_Handler (NEP 49)."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


_handler = _Handler(NAME, 1)  # every array points to it, so it lives as long as the process


def use_pythons_memory() -> None:
    """From now on, in this thread and in processes forked from it. SetupError where this numpy cannot do it."""
    python = ctypes.pythonapi
    python.PyMem_GetAllocator(_RAW_DOMAIN, ctypes.byref(_handler.allocator))
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    multiarray = import_module("numpy._core.multiarray")
    table = python.PyCapsule_GetPointer(ctypes.py_object(multiarray._ARRAY_API), None)
    functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
    set_handler(python.PyCapsule_New(ctypes.byref(_handler), b"mem_handler", None))
    if multiarray.get_handler_name(np.empty(1)) != NAME.decode():
        raise SetupError("numpy does not take another allocator, and would keep what it frees.")
