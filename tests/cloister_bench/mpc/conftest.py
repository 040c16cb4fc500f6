from __future__ import annotations

from tests.cloister_mpc.quick import compile_quickly as compile_quickly
