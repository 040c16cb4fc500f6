"""Reuse of computed prefixes: which tenants find which blocks, what is kept, what goes first (SafeKV, §V and §VI).

These modules handle no text, no sampling parameters and no levels. The engine uses `base` alone.
"""
