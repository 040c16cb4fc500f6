"""The real vLLM, where `make vllm` was run."""

from __future__ import annotations

import os

import pytest

from cloister_vllm.offer import environment_of_vllm

PYTHON = environment_of_vllm() / "bin" / "python"
WITH_VLLM = pytest.mark.skipif(not os.access(PYTHON, os.X_OK), reason="vLLM is not installed: `make vllm`")
