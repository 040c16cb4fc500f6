"""Attention over a sequence in parts: the mathematics of Secure Partitioned Decoding, plain and slow."""
