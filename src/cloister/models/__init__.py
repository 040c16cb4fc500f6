"""Find models, convert them once, and open their weights. Only this package knows where a model's bytes came from."""
