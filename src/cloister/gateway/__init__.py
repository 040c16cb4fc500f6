"""The HTTP edge: the OpenAI-compatible API, API keys, limits, metrics and the chat page.

It hands prompts to a `Backend` and turns the token ids that come back into text. Only at the level `open` does it read
a prompt itself; at the others it passes on bytes and forgets them. It knows nothing of models, batches or caches, and
it keeps and logs no user content.
"""
