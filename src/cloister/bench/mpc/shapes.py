"""Public shapes of models that are measured without their weights: costs depend on sizes alone."""

from __future__ import annotations

from cloister.mpc.model.shape import ModelShape

GPT2 = ModelShape(
    layers=12,
    heads=12,
    kv_heads=12,
    head_size=64,
    hidden=768,
    inner=3072,
    vocabulary=50257,
    positions=1024,
    context=1024,
    epsilon=1e-5,
    activation="gelu",
    gated=False,
    biases=True,
    tied=False,
    rotation=(),
    scales=(1.0,) * 12,
)
