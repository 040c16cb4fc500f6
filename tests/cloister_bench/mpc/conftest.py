from __future__ import annotations

from tests.mpc.quick import compile_quickly as compile_quickly
