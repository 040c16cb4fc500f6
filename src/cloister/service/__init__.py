"""The process that owns the model and computes: it receives token ids and gives token ids.

It knows nothing of HTTP, text or API keys. `Backend` is how a front process sees it.
"""
