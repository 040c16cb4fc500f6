"""Static methods against kvpress, where it is installed (`pip install --no-deps kvpress==0.5.5`)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cloister_bench.mpc.baselines import KeptCache, static_method
from tests.cloister_mpc.cache.drawn import NO_OFFSET, SOFTMAX, drawn_prompt, drawn_shuffles, probabilities, windowed

TOKENS, READ = 96, 48
MODULE = SimpleNamespace(config=SimpleNamespace(num_attention_heads=4, num_key_value_heads=2), head_dim=8)


@pytest.fixture(scope="module")
def press() -> Any:
    """A press by its module's and its own name. kvpress's own __init__ asks for packages that no press here needs."""
    found = importlib.util.find_spec("kvpress")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("kvpress is not installed; pip install --no-deps kvpress==0.5.5")
    package = ModuleType("kvpress")
    package.__path__ = list(found.submodule_search_locations)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "kvpress", package)
        yield lambda module, name: getattr(importlib.import_module(f"kvpress.presses.{module}"), name)
        for name in [name for name in sys.modules if name.startswith("kvpress.")]:
            del sys.modules[name]


PROMPT = drawn_prompt(1, TOKENS)


def made_here(name: str) -> KeptCache:
    return static_method(name, TOKENS, 4, READ, sinks=4)


def given_to(made: Any) -> tuple[Any, ...]:
    keys, values = torch.tensor(PROMPT.keys)[None], torch.tensor(PROMPT.values[..., :-1])[None]
    attentions = torch.tensor(probabilities(PROMPT))[None]
    return MODULE, torch.zeros(1, TOKENS, 8), keys, values, attentions, {}


def kept_by(method: Any) -> list[np.ndarray]:
    """Each head's kept keys, sorted, so that order does not matter."""
    prompt = windowed(PROMPT, method.window)
    eviction = method.evict(prompt, SOFTMAX, NO_OFFSET, drawn_shuffles(2, 2, method.evict_shuffles))
    cache = method.build(prompt, eviction)
    return [np.sort(np.asarray(keys)[:, 0]) for keys in cache.keys]


def kept_by_press(made: Any) -> list[np.ndarray]:
    keys, _ = made.compress(*given_to(made))
    return [np.sort(head[:, 0].numpy()) for head in keys[0]]


def test_snapkv_keeps_what_the_press_keeps(press: Any) -> None:
    method = made_here("snapkv")
    made = press("snapkv_press", "SnapKVPress")(1 - READ / TOKENS, window_size=method.window)
    assert np.allclose(kept_by(method), kept_by_press(made), atol=1e-5)


def test_tova_keeps_what_the_press_keeps(press: Any) -> None:
    made = press("tova_press", "TOVAPress")(1 - READ / TOKENS)
    assert np.allclose(kept_by(made_here("tova")), kept_by_press(made), atol=1e-5)


def test_streaming_keeps_what_the_press_keeps(press: Any) -> None:
    made = press("streaming_llm_press", "StreamingLLMPress")(1 - READ / TOKENS, n_sink=4)
    assert np.allclose(kept_by(made_here("streaming")), kept_by_press(made), atol=1e-5)


def test_h2o_counts_what_the_press_averages(press: Any) -> None:
    """The press divides by how many queries could see a token and by the heads of a group; H2O's paper does not."""
    made = press("observed_attention_press", "ObservedAttentionPress")()
    averaged = made.score(*given_to(made))[0].numpy()
    counted = made_here("h2o").scored(PROMPT, SOFTMAX, NO_OFFSET)
    assert np.allclose(np.asarray(counted) / np.arange(TOKENS, 0, -1) / 2, averaged, atol=1e-5)
