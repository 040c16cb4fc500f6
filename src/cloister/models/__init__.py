"""Find models, convert them once, and open their weights and their tokenizer.

Nothing here computes: the engine takes tensors by name, the front takes a tokenizer, and where the bytes came from
stays in this package.
"""
