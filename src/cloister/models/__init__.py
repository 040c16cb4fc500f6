"""Find models, convert them once, and open their weights.

Where the bytes of a model came from stays in this package: the engine takes tensors by name. Text is in `prompts`.
"""
