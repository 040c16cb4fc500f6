"""The HTTP edge: the OpenAI-compatible API, API keys, limits, metrics and the chat page.

It turns text into token ids, hands them to a `Backend`, and turns the ids that come back into text. It knows nothing of
models, batches or caches, and it keeps and logs no user content.
"""
