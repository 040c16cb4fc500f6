"""Find models, convert them once, and open their weights.

Nothing here computes: the engine takes tensors by name, and where the bytes came from stays in this package. Text and
tokens are `prompts`.
"""
